// Completions: a step at a time, in columns of the runs that are shown. Every text is set as text.
function scoreRow(score) {
  const closed = score.closed !== undefined;
  const note = closed ? `gate closed by ${score.closed}` : score.error !== undefined ? `failed: ${score.error}` : null;
  return element(
    "tr", { class: closed ? "closed" : score.error !== undefined ? "failed" : null },
    element("th", { scope: "row" }, score.name), element("td", {}, figure(score.raw)),
    element("td", {}, note === null ? figure(score.weighted) : note),
  );
}

/** The text with the parts that a dense reward valued: green for what it gave, red for what it took. */
function colouredText(answer, score) {
  const characters = Array.from(answer.text); // places count characters, not UTF-16 units
  const most = Math.max(...score.parts.map((part) => Math.abs(part[2] ?? 0)), 1e-12);
  const text = element("div", { class: "text" });
  let reached = 0;
  for (const [start, end, reward] of score.parts.slice().sort((a, b) => a[0] - b[0])) {
    const begin = Math.max(reached, start);
    if (begin > reached) text.append(characters.slice(reached, begin).join(""));
    const kind = reward > 0 ? "gain" : reward < 0 ? "loss" : "none";
    const span = element("span", { class: `part ${kind}`, title: `${score.name}: ${figure(reward)}` }, characters.slice(begin, end).join(""));
    span.style.setProperty("--strength", `${Math.round(15 + 45 * Math.abs((reward ?? 0) / most))}%`);
    text.append(span, element("sup", { class: "value" }, (reward > 0 ? "+" : "") + figure(reward)));
    reached = Math.max(reached, end);
  }
  text.append(characters.slice(reached).join(""));
  return element("div", {}, element("div", { class: "muted" }, `${score.name}, a value for each part`), text);
}

function answerCard(answer, heading, colour) {
  const dense = answer.scores.filter((score) => score.parts);
  const shown = answer.text === "" ? element("div", { class: "text muted" }, "(empty)") : element("div", { class: "text" }, answer.text);
  const more = answer.more ? element("div", { class: "muted" }, `… ${answer.more} more characters`) : null;
  const card = element(
    "article", { class: "answer" }, heading,
    ...(dense.length ? dense.map((score) => colouredText(answer, score)) : [shown]), more,
    element("table", { class: "scores" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "reward"), element("th", { scope: "col" }, "raw"), element("th", { scope: "col" }, "weighted"))),
      element("tbody", {}, ...answer.scores.map(scoreRow),
        element("tr", { class: "total" }, element("th", { scope: "row" }, "total"), element("td"), element("td", {}, figure(answer.total))))),
  );
  card.style.setProperty("--colour", colour);
  return card;
}

function slider(at, pages, label, draw) {
  if (!pages.length) return;
  let place = pages.length - 1;
  const said = element("output", {}, "");
  const input = element("input", { type: "range", min: 0, max: pages.length - 1, step: 1, value: place, "aria-label": label });
  const content = element("div", { class: "pages" });
  const show = () => {
    place = Number(input.value);
    said.textContent = `step ${pages[place].step}`;
    input.setAttribute("aria-valuetext", said.textContent);
    content.replaceChildren(...draw(pages[place]));
  };
  input.addEventListener("input", show);
  at.append(element("div", { class: "controls" }, element("label", {}, `${label} `, input), said), content);
  listeners.push(show);
}

function buildSideBySide() {
  const at = document.getElementById("beside-pages");
  if (!at) return;
  slider(at, data.completions.beside, "step", (page) => page.prompts.map((one) => {
    const cards = Object.entries(one.answers).filter(([run]) => isRunShown(Number(run))).map(([run, answer]) => answerCard(
      answer,
      element("header", {}, element("a", { href: `#run-${run}` }, data.runs[run].name),
        answer.of > 1 ? element("span", { class: "muted" }, ` first of ${answer.of}`) : null),
      colourOfRun(Number(run)),
    ));
    return element("div", { class: "prompt-group" }, element("div", { class: "prompt" }, one.prompt), element("div", { class: "answers" }, ...cards));
  }));
}

function buildExtremes() {
  const at = document.getElementById("extreme-pages");
  if (!at) return;
  const cardsOf = (answers, run, kind) => answers.map((answer) => answerCard(
    answer, element("header", {}, element("span", { class: "badge " + kind }, kind), element("span", { class: "prompt-inline" }, answer.prompt)),
    colourOfRun(Number(run)),
  ));
  const few = data.runs.length <= 4;
  const open = new Set(data.runs.map((_, run) => String(run)).filter((run) => few || run === "0"));
  const note = (run) => ({ click: () => (open.delete(run) ? null : open.add(run)) });
  slider(at, data.completions.extremes, "step", (page) => Object.entries(page.runs)
    .filter(([run, found]) => found && isRunShown(Number(run)))
    .map(([run, found]) => element(
      "details", { class: "run-extremes", open: open.has(run) },
      element("summary", { on: note(run) }, data.runs[run].name, element("span", { class: "muted" },
        ` best ${figure(found.best[0].total)}` + (found.worst.length ? `, worst ${figure(found.worst[0].total)}` : "") + ` of ${found.rows}`)),
      element("div", { class: "answers" }, ...cardsOf(found.best, run, "best"), ...cardsOf(found.worst, run, "worst")),
    )));
}
