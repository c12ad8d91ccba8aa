"use strict";
// Behaviour of the page: charts by Vega-Embed, filters, choice of axes with its Pareto front, tables that sort. The choices are kept in
// the session, so that it outlives the reloads of a page that is written anew while a sweep runs.
{
const report = JSON.parse(document.getElementById("report").textContent);
const store = `gemmgen-report:${document.title}`;
const kept = load();
const embedded = new Map();  // element -> view
const CANVAS_FROM = 1500;    // points; fewer are drawn as SVG

function load() {
  try { return JSON.parse(sessionStorage.getItem(store)) || {}; } catch { return {}; }
}
function save() {
  try { sessionStorage.setItem(store, JSON.stringify(kept)); } catch { /* a browser that keeps nothing */ }
}
function stateOf(group) {
  return (kept.groups ??= {})[report.groups[group].title] ??= {filters: {}, choice: {}};
}

for (const group of report.groups) {
  group.rows = group.points.rows.map(row => Object.fromEntries(group.points.fields.map((field, i) => [field, row[i]])));
  group.byNumber = new Map(group.rows.map(row => [String(row.number), row]));
}

// Colours of the page, for charts in either scheme.
function config() {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(`--${name}`).trim();
  return {
    background: "transparent",
    font: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
    view: {stroke: null},
    axis: {labelColor: colour("soft"), titleColor: colour("soft"), gridColor: colour("grid"), domainColor: colour("line"), tickColor: colour("line"),
           titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12},
    legend: {labelColor: colour("soft"), titleColor: colour("soft"), titleFontWeight: "normal"},
    range: {category: ["dot", "peer", "roof", "timeout", "runtime", "compile", "correct", "constraints", "correctness"].map(colour)},
    style: {
      dots: {filled: true, color: colour("dot"), opacity: .55, size: 28},
      best: {filled: true, color: colour("best"), opacity: 1, size: 62},
      "best-line": {color: colour("best"), strokeWidth: 1.5, opacity: .7},
      label: {color: colour("ink"), fontSize: 11},
      peer: {color: colour("peer"), strokeDash: [5, 4], strokeWidth: 1.5},
      roof: {color: colour("roof"), strokeWidth: 2},
    },
  };
}

function passes(group, row) {
  const filters = stateOf(group).filters;
  return report.groups[group].filters.every(({key, values}) => {
    const wanted = filters[key];
    if (!wanted) return true;
    if (values) return row[key] === wanted;
    return (wanted.from === undefined || row[key] >= wanted.from) && (wanted.to === undefined || row[key] <= wanted.to);
  });
}
function shown(group) { return report.groups[group].rows.filter(row => passes(group, row)); }

// The points that no other one is at least as good as in both, from one end to the other.
function front(rows, x, y) {
  if (!x.better || !y.better) return [];
  const known = rows.filter(row => Number.isFinite(row[x.key]) && Number.isFinite(row[y.key]));
  known.sort((one, other) => (other[x.key] - one[x.key]) * x.better || (other[y.key] - one[y.key]) * y.better);
  const kept = [];
  for (const row of known) if (!kept.length || (row[y.key] - kept[kept.length - 1][y.key]) * y.better > 0) kept.push(row);
  return kept.map((row, place) => ({...row, place}));
}

function chosen(group, which) {
  const {choices, usual} = report.groups[group], key = stateOf(group).choice[which] ?? usual[which];
  return choices.find(choice => choice.key === key) ?? null;
}

function choiceSpec(group, spec) {
  const x = chosen(group, "x"), y = chosen(group, "y"), colour = chosen(group, "colour");
  const [dots, ...ofFront] = spec.layer;
  const quantitative = [x, y].every(one => one.encoding.type === "quantitative");
  Object.assign(dots.encoding, {x: x.encoding, y: y.encoding});
  if (colour) {
    const {field, title, sort, type} = colour.encoding, few = sort && sort.length <= 10;
    const scale = few ? {} : {scheme: "viridis"};
    dots.encoding.color = {field, title, sort, type: few ? "nominal" : type, scale, legend: {orient: "bottom", columns: 6, symbolLimit: 24}};
  }
  if (!quantitative) delete dots.params;
  for (const layer of ofFront) Object.assign(layer.encoding, {x: x.encoding, y: y.encoding});
  return spec;
}

function frontOf(group) { return front(shown(group), chosen(group, "x"), chosen(group, "y")); }

async function draw(element) {
  const group = element.dataset.group === "" ? null : Number(element.dataset.group), name = element.dataset.chart;
  const charts = group === null ? report.charts : report.groups[group].charts;
  let spec = structuredClone(charts[name]), rows = [];
  if (group !== null) {
    rows = shown(group);
    spec.data.values = rows;
    if (name === "choice") {
      spec = choiceSpec(group, spec);
      for (const layer of spec.layer) if (layer.data) layer.data.values = frontOf(group);
    }
  }
  embedded.get(element)?.finalize();
  const renderer = rows.length > CANVAS_FROM ? "canvas" : "svg";
  // Expressions are interpreted: the page forbids evaluation of text as code.
  const result = await vegaEmbed(element, spec, {config: config(), renderer, ast: true, actions: {export: true, source: false, compiled: false, editor: false}});
  embedded.set(element, result.view);
  element.dataset.drawn = rows.length;
}

const waiting = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { waiting.unobserve(entry.target); draw(entry.target); }
}, {rootMargin: "300px"});
for (const element of document.querySelectorAll(".chart")) waiting.observe(element);
// The charts further down follow while the browser is idle, so that none is empty when the page is scrolled or printed.
const later = window.requestIdleCallback ?? (work => setTimeout(work, 50)), remaining = [...document.querySelectorAll(".chart")];
function drawRemaining() {
  const next = remaining.shift();
  if (!next) return;
  const hidden = next.dataset.drawn !== undefined || next.offsetParent === null;
  if (!hidden) waiting.unobserve(next);
  Promise.resolve(hidden ? null : draw(next)).finally(() => later(drawRemaining));
}
addEventListener("load", () => later(drawRemaining));
function redraw(elements) { for (const element of elements) if (embedded.has(element)) draw(element); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(document.querySelectorAll(".chart")));

// Filters and choices; a problem of one point has none.
function tell(element, text) { if (element) element.textContent = text; }
function apply(section, group) {
  save();
  redraw(section.querySelectorAll(".chart"));
  const rows = shown(group), all = report.groups[group].rows.length;
  tell(section.querySelector(".passing"), rows.length < all ? `${rows.length.toLocaleString("en")} of ${all.toLocaleString("en")} points pass` : "");
  const on = chosen(group, "x")?.better && chosen(group, "y")?.better ? frontOf(group).length : 0;
  tell(section.querySelector(".front"), on ? `${on} ${on === 1 ? "point is" : "points are"} on the Pareto front (orange)` : "a Pareto front needs two metrics of which more or less is better");
  for (const row of section.querySelectorAll("tr[data-number]")) {
    const point = report.groups[group].byNumber.get(row.dataset.number);
    row.hidden = point !== undefined && !passes(group, point);
  }
}
for (const section of document.querySelectorAll("details.problem")) {
  const group = Number(section.dataset.group), state = stateOf(group);
  for (const control of section.querySelectorAll("[data-filter]")) {
    const key = control.dataset.filter, end = control.dataset.end;
    const before = end ? state.filters[key]?.[end] : state.filters[key];
    if (before !== undefined) control.value = before;
    control.addEventListener("input", () => {
      if (end) {
        const range = state.filters[key] ?? {};
        if (control.value === "") delete range[end]; else range[end] = Number(control.value);
        state.filters[key] = range;
      } else if (control.value === "") delete state.filters[key]; else state.filters[key] = control.value;
      apply(section, group);
    });
  }
  for (const control of section.querySelectorAll("[data-choice]")) {
    control.value = chosen(group, control.dataset.choice)?.key ?? "";
    control.addEventListener("input", () => { state.choice[control.dataset.choice] = control.value; apply(section, group); });
  }
  section.querySelector(".reset")?.addEventListener("click", () => {
    state.filters = {};
    for (const control of section.querySelectorAll("[data-filter]")) control.value = "";
    apply(section, group);
  });
  if (kept.open) section.open = kept.open.includes(report.groups[group].title);
  section.addEventListener("toggle", () => {
    kept.open = [...document.querySelectorAll("details.problem[open]")].map(one => report.groups[one.dataset.group].title);
    save();
  });
  apply(section, group);
}
for (const jump of document.querySelectorAll("a.jump")) {
  jump.addEventListener("click", () => { document.querySelector(jump.getAttribute("href")).open = true; });
}
if (report.live) {
  if (kept.scroll) addEventListener("load", () => scrollTo(0, kept.scroll));
  addEventListener("scroll", () => { kept.scroll = scrollY; save(); }, {passive: true});
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = head.classList.contains("num"), key = row => row.cells[column].dataset.key;
    const rows = [...table.tBodies[0].rows].sort((one, other) => {
      const a = key(one), b = key(other);
      if (a === "" || b === "") return (a === "") - (b === "");
      return (numeric ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
  }));
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent + "\n");
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "selected: press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2500);
  });
}
}
