// What is shown, for every part of the page alike: settings are switched off here and nowhere else.
const data = JSON.parse(document.getElementById("page-data").textContent);
const off = new Set(); // settings that are switched off
const listeners = [];
const dark = window.matchMedia("(prefers-color-scheme: dark)");

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
  return !off.has(setting);
}

function isRunShown(run) {
  return isSettingShown(data.runs[run].setting);
}

function colourOfSetting(setting) {
  return data.settings[setting].colours[dark.matches ? 1 : 0];
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

/** Switch a setting off or on; with Shift, show it alone, or all if it is alone. */
function toggle(place, isAlone) {
  const others = data.settings.map((_, other) => other).filter((other) => other !== place);
  if (isAlone) {
    const wasAlone = !off.has(place) && others.every((other) => off.has(other));
    off.clear();
    if (!wasAlone) for (const other of others) off.add(other);
  } else if (!off.delete(place)) off.add(place);
  changed();
}

function chip(setting, place) {
  const button = element(
    "button",
    {
      type: "button", class: "chip", "data-setting": place, title: "click: off and on; with Shift: this one alone",
      on: { click: (event) => toggle(place, event.shiftKey) },
    },
    element("span", { class: "swatch", "aria-hidden": "true" }), setting.name,
  );
  listeners.push(() => {
    button.setAttribute("aria-pressed", String(isSettingShown(place)));
    button.style.setProperty("--colour", colourOfSetting(place));
  });
  return button;
}

/** Rows and cards of a setting have its colour, and are pale while it is switched off. */
function markRows() {
  for (const row of document.querySelectorAll("[data-row-setting]")) {
    const setting = Number(row.dataset.rowSetting);
    row.style.setProperty("--colour", colourOfSetting(setting));
    row.dataset.hidden = String(!isSettingShown(setting));
  }
}

function buildLegend() {
  listeners.push(markRows);
  if (data.settings.length < 2) return;
  document.getElementById("legend").append(
    element("div", { class: "chips", role: "group", "aria-label": "settings that are shown" }, ...data.settings.map(chip)),
  );
}
