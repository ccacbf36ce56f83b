// Curves: plotly draws what state.js selects.
const drawn = new Map(); // element -> function that draws it again
const waiting = new Set(); // elements that are not drawn yet
const CONFIG = {
  displaylogo: false, responsive: true, plotlyServerURL: "", showTips: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

function layout(extra = {}) {
  const [text, grid, card] = ["--text", "--grid", "--card"].map(themed);
  const axis = { gridcolor: grid, linecolor: grid, zeroline: false, ticks: "", fixedrange: false };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    height: 250, margin: { l: 44, r: 10, t: 8, b: 34 }, showlegend: false, hovermode: "closest", dragmode: "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", modebar: { bgcolor: card, color: fade(text, 0.5), activecolor: text },
    font: { family: "system-ui, sans-serif", size: 12, color: text },
    hoverlabel: { bgcolor: card, bordercolor: grid, font: { color: text, size: 12 }, namelength: -1 },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, automargin: "left", ...yaxis }, uirevision: "kept", ...rest,
  };
}

function fade(colour, opacity) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}

/** A band has a gap where a mean has no interval, as of equal seeds: an edge across it would be an interval there. */
function bandTraces(x, mean, low, high, colour, name) {
  const outline = { x: [], y: [] };
  let piece = [];
  const close = () => {
    const back = [...piece].reverse();
    if (piece.length > 1) {
      outline.x.push(...[...piece, ...back].map((place) => x[place]), null);
      outline.y.push(...piece.map((place) => low[place]), ...back.map((place) => high[place]), null);
    }
    piece = [];
  };
  for (const place of x.keys()) {
    if (mean[place] === null) continue;
    if (low[place] === null || high[place] === null) close();
    else piece.push(place);
  }
  close();
  if (outline.x.length === 0) return [];
  return [{ ...outline, mode: "lines", line: { width: 0 }, hoverinfo: "skip", name, fill: "toself", fillcolor: fade(colour, 0.16) }];
}

function curveTraces(plot) {
  const bands = [], seeds = [], means = [];
  const isDotted = plot.x.length <= 30;
  const lineOf = (y, colour, name, more) => ({
    x: plot.x, y, mode: isDotted ? "lines+markers" : "lines", connectgaps: true, name: forPlotly(name),
    line: { color: colour, width: 2 }, marker: { size: plot.x.length > 3 ? 4 : 9, color: colour }, ...more,
  });
  for (const [place, setting] of data.settings.entries()) {
    if (!isSettingShown(place) || !plot.bands[place]) continue;
    const [mean, low, high] = plot.bands[place];
    bands.push(...bandTraces(plot.x, mean, low, high, colourOfSetting(place), setting.name));
    means.push(lineOf(mean, colourOfSetting(place), setting.name, {
      meta: { setting: place }, customdata: plot.x.map((_, at) => [figure(low[at]), figure(high[at])]),
      hovertemplate: `${forPlotly(setting.name)}: %{y:.4~g} [%{customdata[0]}, %{customdata[1]}]<extra></extra>`,
    }));
  }
  const together = new Map(); // the seeds of a setting are one line with gaps: plotly's time goes by lines
  for (const [key, values] of Object.entries(plot.lines)) {
    const run = Number(key);
    const { name, setting } = data.runs[run];
    if (!isRunShown(run)) continue;
    if (!plot.bands[setting]) {
      if (plot.intervals[run]) bands.push(...bandTraces(plot.x, values, ...plot.intervals[run], colourOfRun(run), name));
      means.push(lineOf(values, colourOfRun(run), name, {
        meta: { runs: [run] }, hovertemplate: `${forPlotly(name)}: %{y:.4~g}<extra></extra>`,
      }));
    } else {
      if (!together.has(setting)) together.set(setting, { x: [], y: [], customdata: [], runs: [] });
      const line = together.get(setting);
      for (const [place, value] of [...values, null].entries()) {
        const isEnd = place === values.length;
        if (value === null && !isEnd) continue;
        line.x.push(isEnd ? null : plot.x[place]);
        line.y.push(value);
        line.customdata.push(forPlotly(name));
      }
      line.runs.push(run);
    }
  }
  for (const [setting, { x, y, customdata, runs }] of together) {
    seeds.push({
      x, y, customdata, mode: "lines", connectgaps: false, line: { color: fade(colourOfSetting(setting), 0.4), width: 1 },
      meta: { runs }, name: forPlotly(data.settings[setting].name), hovertemplate: "%{customdata}: %{y:.4~g}<extra></extra>",
    });
  }
  return [...bands, ...seeds, ...means];
}

/** The axis holds the curves with some room; of a wide band what is beyond is cut off until a double click. */
function rangeOf(plot, curves) {
  let [low, high] = [Infinity, -Infinity];
  for (const trace of curves) for (const value of trace.y) if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return {};
  if (plot.zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const room = (high - low) * 0.12 || Math.abs(high) * 0.1 || 0.5;
  return { range: [plot.zero && low === 0 ? 0 : low - room, high + room] };
}

function drawCurves(at, plot) {
  const traces = curveTraces(plot);
  const curves = traces.filter((trace) => trace.hoverinfo !== "skip");
  const isUnified = curves.filter((trace) => !trace.meta.runs || trace.meta.runs.length === 1).length <= 12;
  // Under the pointer stand the settings; of many curves the nearest alone.
  if (isUnified) for (const trace of curves) if (trace.meta.runs && trace.meta.runs.length > 1) trace.hoverinfo = "skip";
  Plotly.react(at, traces, layout({
    hovermode: isUnified ? "x unified" : "closest",
    xaxis: { title: { text: "step", standoff: 4 }, hoverformat: "~g" },
    yaxis: rangeOf(plot, curves),
  }), CONFIG);
}

/** Draw one plot after another, so that the page answers in between. */
function drawNext() {
  const [at] = waiting;
  if (!at) { document.documentElement.dataset.drawn = "all"; return; }
  waiting.delete(at);
  drawn.get(at)();
  setTimeout(drawNext);
}

function redraw() {
  for (const [at, draw] of drawn) if (!waiting.has(at)) draw();
}

function buildCurves() {
  for (const plot of data.plots) {
    const grid = document.querySelector(`[data-plots="${plot.section}"]`);
    const at = element("div", { class: "plot", id: plot.id });
    const note = plot.events > 1 ? element("span", { class: "muted" }, ` a point is the mean of ${plot.events} steps`) : null;
    grid.append(element("figure", {}, element("figcaption", {}, element("b", {}, plot.name), note), at));
    drawn.set(at, () => drawCurves(at, plot));
    waiting.add(at);
  }
}
