"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  function make(tag, text, attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = text;
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    return element;
  }

  // Tables: each heading has a sort button. Unknown values stay last, totals stay in the footer.

  function compare(one, other) {
    const [a, b] = [one, other].map(cell => Number.parseFloat(cell.dataset.sort));
    if (!Number.isNaN(a) && !Number.isNaN(b)) return a - b;
    return one.textContent.localeCompare(other.textContent, "en", { numeric: true });
  }

  function sort(heading, table) {
    const column = heading.cellIndex;
    const rising = heading.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const known = row => !$(".absent", row.cells[column]);
    const rows = [...body.rows].sort((one, other) =>
      known(other) - known(one) || (rising ? 1 : -1) * compare(one.cells[column], other.cells[column]));
    body.append(...rows);
    $$("thead th", table).forEach(other => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
  }

  $$("table").filter(table => table.tBodies[0].rows.length > 1).forEach(table => $$("thead th", table).forEach(heading => {
    const button = make("button", heading.textContent.trim(), { type: "button" });
    button.addEventListener("click", () => sort(heading, table));
    heading.replaceChildren(button);
  }));

  // Charts: lines over the seconds since the start of the run; the axis uses the unit that fits.

  const data = JSON.parse($("#data").textContent);
  const [first_s, last_s] = data.window_s;
  const axis = [[300, 1, "s"], [3 * 3600, 60, "min"], [72 * 3600, 3600, "h"], [Infinity, 86400, "d"]]
    .map(([below_s, seconds, unit]) => ({ below_s, seconds, unit })).find(one => data.duration_s < one.below_s);
  const hidden = new Set();
  const coarse = matchMedia("(pointer: coarse)").matches;
  const least_s = Math.max((last_s - first_s) / 2000, 0.5);
  let shown = [first_s, last_s];
  let charts = [];

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const get = name => style.getPropertyValue(`--${name}`).trim();
    return {
      paper: get("paper"), ink: get("ink"), quiet: get("quiet"), line: get("line"), run: get("run"), phase: get("phase"),
      strong: get("strong-line"), series: get("series").split(",").map(color => color.trim()),
    };
  }

  function trace(line, colors, unit) {
    const own = line.device !== null;
    const stepped = line.kind === "limit" || line.kind === "slot";
    const dash = { limit: "dash", second: "dot" }[line.kind] || "solid";
    const few = !stepped && line.t.length <= 30; // a single sample between two gaps has no line
    return {
      type: "scatter", mode: few ? "lines+markers" : "lines", name: escaped(line.name), connectgaps: false, visible: !hidden.has(line.device),
      x: line.t.map(t => t / axis.seconds), y: line.value,
      line: {
        color: own ? colors.series[line.device % colors.series.length] : line.kind === "slot" ? colors.series[0] : colors.quiet,
        width: line.kind === "limit" || (line.kind === "line" && data.devices.length <= 4) ? 1.6 : 1.1, dash, shape: stepped ? "hv" : "linear", simplify: true,
      },
      marker: { size: 5 }, fill: "none", hovertemplate: `%{y:,.4~g} ${unit}`,
    };
  }

  const escaped = text => text.replace(/[&<>]/g, mark => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[mark]);

  function shades(colors) {
    const rectangle = (start_s, end_s, fillcolor) => ({
      type: "rect", xref: "x", yref: "paper", x0: start_s / axis.seconds, x1: end_s / axis.seconds, y0: 0, y1: 1,
      layer: "below", line: { width: 0 }, fillcolor,
    });
    const names = [...new Set(data.phases.map(span => span.name))];
    const odd = data.phases.filter(span => names.indexOf(span.name) % 2 === 0);
    return [rectangle(0, data.duration_s, colors.run), ...odd.map(span => rectangle(span.start_s, span.end_s, colors.phase))];
  }

  // Labels of the visible phases, shortened to the available width.
  function names(chart, colors) {
    const width = chart.clientWidth - 60;
    const pixels = width / (shown[1] - shown[0]);
    return data.phases.flatMap(span => {
      const [start, end] = [Math.max(span.start_s, shown[0]), Math.min(span.end_s, shown[1])];
      const room = Math.floor((end - start) * pixels / 6.4);
      if (room < 3) return [];
      const text = span.name.length <= room ? span.name : `${span.name.slice(0, room - 1)}…`;
      return [{
        text: escaped(text), x: start / axis.seconds, y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "bottom",
        showarrow: false, font: { size: 11, color: colors.quiet },
      }];
    });
  }

  function layout(chart, colors) {
    const power = chart.key === "power";
    return {
      autosize: true, showlegend: false, paper_bgcolor: colors.paper, plot_bgcolor: colors.paper,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colors.quiet },
      margin: { l: 48, r: 12, t: power ? 20 : 6, b: 34 },
      hovermode: "x unified", hoverdistance: 120, dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: colors.paper, bordercolor: colors.line, font: { color: colors.ink, size: 12 } },
      xaxis: {
        range: shown.map(t => t / axis.seconds), showgrid: false, zeroline: false, ticks: "", ticksuffix: ` ${axis.unit}`,
        nticks: Math.max(3, Math.floor(chart.box.clientWidth / 110)), hoverformat: ",.2~f", showline: true, linecolor: colors.line,
        showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: colors.strong, spikesnap: "hovered data",
      },
      yaxis: {
        rangemode: chart.key === "temperature" ? "normal" : "tozero", fixedrange: true, gridcolor: colors.line, gridwidth: 1, zeroline: false, nticks: power ? 7 : 4,
        separatethousands: true, ...(chart.unit === "%" ? { range: [0, 104] } : {}),
      },
      shapes: shades(colors), annotations: power ? names(chart.box, colors) : [],
    };
  }

  const options = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

  function draw() {
    const colors = theme();
    [".legend i", ".key i"].forEach(marks => $$(marks).forEach((mark, position) =>
      mark.style.setProperty("--mark", colors.series[position % colors.series.length])));
    return Promise.all(charts.map(chart => Plotly.react(
      chart.box, chart.lines.map(line => trace(line, colors, chart.unit)), layout(chart, colors), options)));
  }

  function show(from_s, until_s, label = "") {
    const length = Math.min(Math.max(until_s - from_s, least_s), last_s - first_s);
    const start = Math.min(Math.max(from_s, first_s), last_s - length);
    shown = [start, start + length];
    const colors = theme();
    charts.forEach(chart => Plotly.relayout(chart.box, {
      "xaxis.range": shown.map(t => t / axis.seconds),
      ...(chart.key === "power" ? { annotations: names(chart.box, colors) } : {}),
    }));
    const whole = length >= last_s - first_s;
    const digits = Math.max(0, Math.ceil(1 - Math.log10(length / axis.seconds)));
    const texts = shown.map(t => (t / axis.seconds).toFixed(digits));
    $("#shown").textContent = label || (whole ? "" : `${texts[0]} to ${texts[1]} ${axis.unit}`);
    if (!label) $("#span").value = whole ? "all" : "";
  }

  function spans() {
    const phases = [...new Set(data.phases.map(span => span.name))].map(name => {
      const own = data.phases.filter(span => span.name === name);
      return { name, from_s: own[0].start_s, until_s: own[own.length - 1].end_s };
    });
    return [
      { key: "all", text: "all", from_s: first_s, until_s: last_s },
      { key: "run", text: "the run", from_s: 0, until_s: data.duration_s },
      ...phases.map((phase, index) => ({ ...phase, key: `phase-${index}`, text: `phase ${phase.name}` })),
    ];
  }

  function controls() {
    const choice = $("#span");
    const known = spans();
    choice.append(...known.map(span => make("option", span.text, { value: span.key })), make("option", "a part", { value: "", hidden: "" }));
    choice.addEventListener("change", () => {
      const span = known.find(one => one.key === choice.value);
      if (span) show(span.from_s, span.until_s, span.key === "all" ? "" : span.text);
    });
    $$("[data-move]").forEach(button => button.addEventListener("click", () => {
      const length = shown[1] - shown[0];
      const [factor, step] = { in: [0.5, 0.25], out: [2, -0.5], left: [1, -0.5], right: [1, 0.5] }[button.dataset.move];
      show(shown[0] + step * length, shown[0] + (step + factor) * length);
    }));
  }

  function legend() {
    const chips = data.devices.map((name, device) => {
      const chip = make("button", name, { type: "button", "aria-pressed": "true" });
      chip.prepend(document.createElement("i"));
      chip.addEventListener("click", () => toggle([device], !hidden.has(device)));
      return chip;
    });
    function toggle(devices, hide) {
      devices.forEach(device => {
        hidden[hide ? "add" : "delete"](device);
        chips[device].setAttribute("aria-pressed", String(!hide));
      });
      draw();
    }
    $(".legend").append(...chips);
    $(".key").append(...data.devices.map(name => {
      const item = make("li", name);
      item.prepend(document.createElement("i"));
      return item;
    }));
    if (chips.length > 2) {
      const every = make("button", "All or none", { type: "button" });
      every.addEventListener("click", () => toggle(chips.map((_, device) => device), hidden.size === 0));
      $(".legend").append(every);
    }
  }

  async function library() {
    const packed = Uint8Array.from(atob($("#library").textContent), letter => letter.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", await new Response(unpacked).text()));
    if (!window.Plotly) throw new Error("Plotly did not start");
  }

  function follow() {
    charts.forEach(({ box }) => {
      box.on("plotly_relayout", change => {
        const [from, until] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
        if (from !== undefined) show(from * axis.seconds, until * axis.seconds);
      });
      box.on("plotly_doubleclick", () => show(first_s, last_s));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const paper = printing => {
      document.documentElement.classList.toggle("printing", printing);
      draw();
      charts.forEach(({ box }) => Plotly.relayout(box, printing
        ? { width: 680, height: box.clientHeight, autosize: false }
        : { width: undefined, height: undefined, autosize: true }));
    };
    addEventListener("beforeprint", () => paper(true));
    addEventListener("afterprint", () => paper(false));
  }

  async function start() {
    await library();
    $(".live").hidden = $(".charts-by").hidden = false;
    $(".picture").hidden = true;
    charts = data.charts.map(chart => ({ ...chart, box: $(`#chart-${chart.key} .chart`) }));
    controls();
    legend();
    await draw();
    follow();
    document.documentElement.dataset.charts = "drawn";
  }

  start().catch(() => {
    $(".live").hidden = true;
    $(".picture").hidden = false;
    document.documentElement.dataset.charts = "failed";
  });
})();
