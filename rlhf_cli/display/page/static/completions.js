// Completions: a step at a time, in columns of the runs that are shown. Every text is set as text.
function scoreRow(score) {
  const closed = score.closed !== undefined;
  const note = closed ? `gate closed by ${score.closed}` : score.error !== undefined ? `failed: ${score.error}` : null;
  return element(
    "tr", { class: closed ? "closed" : score.error !== undefined ? "failed" : null },
    element("th", { scope: "row" }, score.name), element("td", {}, figure(score.raw) + (score.parts ? ` = ${score.parts.map(figure).join(" + ")}` : "")),
    element("td", {}, note === null ? figure(score.weighted) : note),
  );
}

function answerCard(answer, heading, colour) {
  const shown = answer.text === "" ? element("div", { class: "text muted" }, "(empty)") : element("div", { class: "text" }, answer.text);
  const more = answer.more ? element("div", { class: "muted" }, `… ${answer.more} more characters`) : null;
  const card = element(
    "article", { class: "answer" }, heading, shown, more,
    element("table", { class: "scores" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "reward"), element("th", { scope: "col" }, "raw"), element("th", { scope: "col" }, "weighted"))),
      element("tbody", {}, ...answer.scores.map(scoreRow),
        element("tr", { class: "total" }, element("th", { scope: "row" }, "total"), element("td"), element("td", {}, figure(answer.total))))),
  );
  card.style.setProperty("--colour", colour);
  return card;
}

/** A slider over the steps, and below it the answers of the runs that are shown. */
function buildAnswers() {
  const at = document.getElementById("answer-pages");
  if (!at) return;
  const pages = data.completions;
  const said = element("output", {}, "");
  const input = element("input", { type: "range", min: 0, max: pages.length - 1, step: 1, value: pages.length - 1, "aria-label": "step" });
  const content = element("div", { class: "pages" });
  const show = () => {
    const page = pages[Number(input.value)];
    said.textContent = `step ${page.step}`;
    content.replaceChildren(...page.prompts.map((one) => {
      const cards = Object.entries(one.answers).filter(([run]) => isRunShown(Number(run))).map(([run, answer]) => answerCard(
        answer,
        element("header", {}, element("a", { href: `#run-${run}` }, data.runs[run].name),
          answer.of > 1 ? element("span", { class: "muted" }, ` first of ${answer.of}`) : null),
        colourOfSetting(data.runs[run].setting),
      ));
      return element("div", { class: "prompt-group" }, element("div", { class: "prompt" }, one.prompt), element("div", { class: "answers" }, ...cards));
    }));
  };
  input.addEventListener("input", show);
  at.append(element("div", { class: "controls" }, element("label", {}, "step ", input), said), content);
  listeners.push(show);
}
