// Puts the page together: first what needs no plotly, then plotly out of its deflated text.
async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

function buildControls() {
  const strength = document.getElementById("smoothing");
  if (strength) strength.addEventListener("change", () => { smoothing = Number(strength.value); redraw(); });
  const seeds = document.getElementById("seeds");
  if (seeds) seeds.addEventListener("change", () => { showsSeeds = seeds.checked; redraw(); });
}

/** On paper everything is open, drawn and in the colours of light ground, as wide as the paper. */
function print(isOn) {
  isPrinting = isOn;
  document.documentElement.classList.toggle("printing", isOn);
  for (const details of document.querySelectorAll("details[data-was-closed]")) {
    details.open = false;
    delete details.dataset.wasClosed;
  }
  for (const at of [...waiting]) drawWaiting(at);
  changed();
  if (isOn) {
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      details.dataset.wasClosed = "";
    }
  }
  for (const at of drawn.keys()) Plotly.relayout(at, isOn ? { width: at.clientWidth } : { width: null, autosize: true });
}

function goTo(anchor) {
  const target = document.getElementById(anchor);
  if (!target) return;
  for (let inside = target; inside; inside = inside.parentElement) if (inside.tagName === "DETAILS") inside.open = true;
  history.replaceState(null, "", `#${anchor}`);
  target.scrollIntoView({ behavior: "auto", block: "center" });
  target.focus({ preventScroll: true });
}

async function start() {
  buildLegend();
  buildSideBySide();
  buildExtremes();
  buildControls();
  changed();
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => { event.preventDefault(); goTo(link.getAttribute("href").slice(1)); });
  }
  try {
    const script = document.createElement("script");
    script.textContent = await inflated("plotly-deflated");
    document.head.append(script);
    data.plots = JSON.parse(await inflated("curves-deflated"));
    buildCurves();
  } catch (error) {
    document.getElementById("no-plots").hidden = false;
    document.getElementById("no-plots").append(` (${error.message})`);
    return;
  }
  listeners.push(redraw);
  dark.addEventListener("change", changed);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  drawInIdleTime();
}

start();
