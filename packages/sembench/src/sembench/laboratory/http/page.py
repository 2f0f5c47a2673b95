"""The one page: choose an experiment, run it, see the table and the figures."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Eviction laboratory</title>
<style>
:root { color-scheme: light dark; font: 16px/1.45 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; }
form { display: flex; flex-wrap: wrap; gap: .8rem; align-items: end; }
label { display: grid; gap: .2rem; font-size: .85rem; }
input, select, button { font: inherit; padding: .3rem .5rem; }
input { width: 8rem; }
#wrap { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #8886; padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
td:last-child, th:last-child { border-left: 2px solid #8888; }
#figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
img { width: 100%; background: white; }
#problem { color: #b00020; white-space: pre-line; }
</style>
</head>
<body>
<h1>Which KV to keep</h1>
<p>Every policy serves the same requests in a cache of limited size. All times are simulated estimates, not measured GPU
latency. Belady, last, knows the future: no policy can do better.</p>
<form id="form">
<label>Experiment <select id="experiment"></select></label>
<label>Seeds <input id="seeds" type="number" min="1" max="20" value="3"></label>
<label>Requests <input id="requests" type="number" min="1" max="2000"></label>
<label>Cache, tokens <input id="budget" type="number" min="1"></label>
<label>Finds blocks <select id="semantics">
<option value="prefix">as prefixes</option>
<option value="block">by content</option>
<option value="span">as spans</option>
</select></label>
<button id="run">Run</button>
</form>
<p id="about"></p>
<p id="state" role="status"></p>
<p id="problem" role="alert"></p>
<div id="wrap"><table id="table" hidden></table></div>
<div id="figures"></div>
<script>
"use strict";
const at = (id) => document.getElementById(id);
const ROWS = [
  ["hit ratio (blocks)", "hit_ratio", 4], ["byte ratio (tokens)", "byte_ratio", 4],
  ["compute saved", "compute_saved", 4],
  ["mean TTFT, ms", "avg_ttft_ms", 1], ["TTFT gain over LRU, %", "ttft_gain_over_lru_percent", 2],
  ["of the way to Belady", "of_the_way_to_belady", 2], ["evictions", "evictions", 0], ["regrets", "regrets", 0],
];
let experiments = [];

async function asked(path, options) {
  const answer = await fetch(path, options);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail.join("\\n"));
  return body;
}
function choose() {
  const chosen = experiments.find((each) => each.name === at("experiment").value);
  at("about").textContent = chosen.description;
  at("requests").value = chosen.requests;
  at("budget").value = chosen.cache_token_budget;
  at("semantics").value = chosen.semantics;
}
function cell(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}
function row(kind, texts) {
  const made = document.createElement("tr");
  made.append(cell("th", texts[0]), ...texts.slice(1).map((text) => cell(kind, text)));
  return made;
}
function shown(interval, digits) {
  if (interval.value === null) return "\\u2013";
  const text = (value) => value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const spread = interval.low === null ? "" : " (" + text(interval.low) + " to " + text(interval.high) + ")";
  return text(interval.value) + spread;
}
function show(done) {
  const columns = [...done.policies, done.belady];
  const cells = (name, digits) => columns.map((each) => shown(each[name], digits));
  const lines = ROWS.map(([title, name, digits]) => row("td", [title, ...cells(name, digits)]));
  at("table").replaceChildren(row("th", ["", ...columns.map((each) => each.policy)]), ...lines);
  at("table").hidden = false;
  at("figures").replaceChildren(...done.figures.map((path) => {
    const picture = document.createElement("img");
    picture.src = path;
    picture.alt = path.split("/").pop().replace(".png", "").replaceAll("_", " ");
    return picture;
  }));
}
async function run(event) {
  event.preventDefault();
  at("run").disabled = true;
  at("problem").textContent = "";
  at("state").textContent = "Running\\u2026";
  const order = {
    experiment: at("experiment").value, seeds: Number(at("seeds").value), requests: Number(at("requests").value),
    cache_token_budget: Number(at("budget").value), semantics: at("semantics").value,
  };
  try {
    const options = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(order)};
    const done = await asked("/v1/experiments/run", options);
    show(done);
    at("state").textContent = "Written: " + done.run;
  } catch (error) {
    at("state").textContent = "";
    at("problem").textContent = error.message;
  }
  at("run").disabled = false;
}
async function start() {
  experiments = await asked("/v1/experiments");
  at("experiment").replaceChildren(...experiments.map((each) => cell("option", each.name)));
  at("experiment").addEventListener("change", choose);
  at("form").addEventListener("submit", run);
  choose();
  document.body.dataset.ready = "yes";
}
start();
</script>
</body>
</html>
"""
