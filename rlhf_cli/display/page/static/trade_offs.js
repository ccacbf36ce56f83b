// The front: settings as points, runs as small ones, in the units of the measures.
function nameOf(point) {
  return point.run === undefined ? data.settings[point.setting].name : data.runs[point.run].name;
}

/** A run's card; of a setting with several runs its line in the table. */
function anchorOf(point) {
  if (point.run !== undefined) return `run-${point.run}`;
  const runs = data.settings[point.setting].runs;
  return runs.length === 1 ? `run-${runs[0]}` : `setting-${point.setting}`;
}

function frontTraces(front, chosen) {
  const [x, y, z] = chosen;
  const best = new Set(front.best[chosen.filter((one) => one !== null).slice().sort((a, b) => a - b).join(",")] || []);
  const traces = [];
  const points = [...front.runs, ...front.settings].filter((point) => point.values[x] !== null && point.values[y] !== null);
  for (const point of points) {
    const isRun = point.run !== undefined;
    if (isRun ? !isRunShown(point.run) : !isSettingShown(point.setting)) continue;
    const setting = isRun ? data.runs[point.run].setting : point.setting;
    const isBest = best.has(setting);
    const colour = isBest ? colourOfSetting(setting) : themed("--dominated");
    const bar = (axis) => ({
      type: "data", symmetric: false, thickness: 1, width: 3, color: colour, visible: !isRun && point.low[axis] !== null,
      array: [point.high[axis] - point.values[axis]], arrayminus: [point.values[axis] - point.low[axis]],
    });
    const lines = chosen.filter((one) => one !== null).map((one) => {
      const interval = isRun || point.low[one] === null ? "" : ` [${figure(point.low[one])}, ${figure(point.high[one])}]`;
      return `${forPlotly(front.measures[one].label)} ${figure(point.values[one])}${interval}`;
    });
    traces.push({
      x: [point.values[x]], y: [point.values[y]], mode: isRun ? "markers" : "markers+text", name: forPlotly(nameOf(point)),
      text: [forPlotly(nameOf(point), 28)], textposition: "top center", textfont: { color: isBest ? themed("--text") : themed("--muted"), size: 11 },
      cliponaxis: false, meta: point, error_x: isRun ? undefined : bar(x), error_y: isRun ? undefined : bar(y),
      marker: {
        color: isRun ? fade(colour, 0.45) : colour, size: isRun ? 7 : 13, symbol: isBest ? "circle" : "circle-open",
        line: { width: isBest ? 0 : 2, color: isRun ? fade(colour, 0.45) : colour },
      },
      hovertemplate: `<b>${forPlotly(nameOf(point))}</b><br>${lines.join("<br>")}<br>${isBest ? "on the front" : "dominated"}, click: its run<extra></extra>`,
    });
  }
  return traces;
}

function goTo(anchor) {
  const target = document.getElementById(anchor);
  if (!target) return;
  for (let inside = target; inside; inside = inside.parentElement) if (inside.tagName === "DETAILS") inside.open = true;
  history.replaceState(null, "", `#${anchor}`);
  target.scrollIntoView({ behavior: "auto", block: "center" });
  target.focus({ preventScroll: true });
}

function buildFront() {
  const at = document.getElementById("front-plot");
  const front = data.front;
  if (!at || !front) return;
  const chosen = [0, 1, front.measures.length > 2 && front.startsWithThree ? 2 : null];
  const controls = document.getElementById("front-controls");
  const pick = (place, label, isOptional) => {
    const select = element("select", { id: `front-${label}`, on: { change: (event) => {
      const value = event.target.value === "" ? null : Number(event.target.value);
      const other = chosen.indexOf(value);
      if (value !== null && other >= 0) chosen[other] = chosen[place];
      chosen[place] = value;
      for (const [number, one] of selects.entries()) one.value = chosen[number] === null ? "" : String(chosen[number]);
      drawFront();
    } } });
    if (isOptional) select.append(element("option", { value: "" }, "nothing else"));
    for (const [number, measure] of front.measures.entries()) {
      select.append(element("option", { value: number }, `${measure.label} (${measure.direction})`));
    }
    select.value = chosen[place] === null ? "" : String(chosen[place]);
    controls.append(element("label", {}, `${label} `, select));
    return select;
  };
  const selects = [pick(0, "across", false), pick(1, "up", false)];
  if (front.measures.length > 2) selects.push(pick(2, "and", true));
  const drawFront = () => {
    const [x, y] = chosen.map((one) => front.measures[one]);
    const reversed = (measure) => (measure.sign < 0 ? { autorange: "reversed" } : {});
    Plotly.react(at, frontTraces(front, chosen), layout({
      height: 420, margin: { l: 54, r: 24, t: 24, b: 44 }, uirevision: chosen.join(),
      xaxis: { title: { text: `${forPlotly(x.label)}` }, ...reversed(x) },
      yaxis: { title: { text: `${forPlotly(y.label)}` }, ...reversed(y) },
    }), CONFIG);
    if (!at.hasClick) {
      at.on("plotly_click", (event) => goTo(anchorOf(event.points[0].data.meta)));
      at.hasClick = true;
    }
  };
  plotAt(at, drawFront);
}
