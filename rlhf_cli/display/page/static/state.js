// What is shown, for every part of the page alike: settings and runs are switched off here and nowhere else.
const data = JSON.parse(document.getElementById("page-data").textContent);
const off = { settings: new Set(), runs: new Set() };
const listeners = [];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let isPrinting = false;

/** An element with attributes and children; texts become text nodes, never HTML. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function isSettingShown(setting) {
  return !off.settings.has(setting) && data.settings[setting].runs.some((run) => !off.runs.has(run));
}

function isRunShown(run) {
  return !off.runs.has(run) && !off.settings.has(data.runs[run].setting);
}

function colourOfSetting(setting) {
  return data.settings[setting].colours[dark.matches && !isPrinting ? 1 : 0];
}

function colourOfRun(run) {
  return colourOfSetting(data.runs[run].setting);
}

function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function changed() {
  for (const listener of listeners) listener();
}

/** A number as a person reads it: four significant digits, no trailing zeros. */
function figure(value) {
  if (value === null || value === undefined) return "–";
  const short = Number(value.toPrecision(4));
  return (Math.abs(short) >= 1e6 || (short !== 0 && Math.abs(short) < 1e-4)) ? short.toExponential() : String(short);
}

/** A text for plotly, which reads a little HTML and %{...} in hover texts: here both are only characters. */
function forPlotly(text, longest = 60) {
  const cut = text.length > longest ? text.slice(0, longest - 1) + "…" : text;
  return cut.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "%&#123;");
}

function toggle(set, place, only, all) {
  if (only) {
    const isAlone = !set.has(place) && all.every((other) => other === place || set.has(other));
    set.clear();
    if (!isAlone) for (const other of all) if (other !== place) set.add(other);
  } else if (!set.delete(place)) set.add(place);
  changed();
}

function chip(label, kind, place, colour, all) {
  const button = element(
    "button",
    {
      type: "button", class: "chip", [`data-${kind}`]: place, title: "click: off and on; with Shift: this one alone",
      on: { click: (event) => toggle(off[`${kind}s`], place, event.shiftKey, all) },
    },
    element("span", { class: "swatch", "aria-hidden": "true" }), label,
  );
  listeners.push(() => {
    const isShown = !off[`${kind}s`].has(place);
    button.setAttribute("aria-pressed", String(isShown));
    button.style.setProperty("--colour", colour());
  });
  return button;
}

/** Rows and cards of a setting have its colour, and are pale while it is switched off. */
function markRows() {
  for (const row of document.querySelectorAll("[data-row-setting]")) {
    const setting = Number(row.dataset.rowSetting);
    row.style.setProperty("--colour", colourOfSetting(setting));
    const isCard = row.id.startsWith("run-");
    row.dataset.hidden = String(!(isCard ? isRunShown(Number(row.id.slice(4))) : isSettingShown(setting)));
  }
}

function buildLegend() {
  const legend = document.getElementById("legend");
  if (!legend) return;
  const settings = data.settings.map((_, place) => place);
  const runs = data.runs.map((_, place) => place);
  if (runs.length < 2) { listeners.push(markRows); return; }
  const several = data.settings.some((setting) => setting.runs.length > 1);
  const chips = element("div", { class: "chips", role: "group", "aria-label": "settings that are shown" });
  for (const place of settings) {
    chips.append(chip(data.settings[place].name, "setting", place, () => colourOfSetting(place), settings));
  }
  chips.append(element("button", {
    type: "button", class: "plain", id: "show-all",
    on: { click: () => { off.settings.clear(); off.runs.clear(); changed(); } },
  }, "show all"));
  legend.append(chips);
  if (several) {
    const single = element("div", { class: "chips small", role: "group", "aria-label": "runs that are shown" });
    for (const run of runs) single.append(chip(data.runs[run].name, "run", run, () => colourOfRun(run), runs));
    legend.append(element("details", { id: "single-runs" }, element("summary", {}, `single runs (${runs.length})`), single));
  }
  listeners.push(markRows, () => {
    const count = off.settings.size + off.runs.size;
    document.getElementById("show-all").disabled = count === 0;
  });
}
