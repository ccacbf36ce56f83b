// Puts the page together: first what needs no plotly, then plotly out of its deflated text.
async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

async function start() {
  buildLegend();
  buildAnswers();
  changed();
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
  drawNext();
}

start();
