"use strict";
// Reads server-sent events and draws. Texts of the job are set as texts and never as HTML.

const TOKEN = new URLSearchParams(location.search).get("token");
const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  waiting: ["waiting for a job", ""], starting: ["starting", "accent"], running: ["running", "good"],
  hurt: ["not all there", "bad"], stuck: ["stuck", "bad"], done: ["ended well", "good"],
  failed: ["failed", "bad"], lost: ["launcher is gone", "bad"],
};
const FLAGS = { stuck: "bad", dead: "bad", "not finite": "bad", slow: "warn", quiet: "warn", waits: "warn" };
const AXES = { pp: "pipeline stages", dp: "copies", sharding: "shards", tp: "tensor parallel" };

const byId = (id) => document.getElementById(id);
let points = [], restarts = [], latest = null, log = "workerlog.0", source = null;

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function fill(node, ...children) { node.replaceChildren(...children); }

function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

// Numbers as people read them.
function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4) {
    const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const [scale, name] = units.find(([limit]) => size >= limit);
    return (value / scale).toPrecision(3).replace(/\.0+$/, "") + " " + name;
  }
  if (size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(size >= 1000 ? 4 : digits)));
}

function bytes(value) {
  if (!value) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return value.toPrecision(3).replace(/\.0+$/, "") + " " + units[at];
}

function percent(share) { return share === null || share === undefined ? "–" : Math.round(100 * share) + " %"; }

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (parts[0]) return `${parts[0]} h ${parts[1]} min`;
  return parts[1] ? `${parts[1]} min ${parts[2]} s` : `${parts[2]} s`;
}

function clock(at) { return new Date(1000 * at).toLocaleTimeString(); }

// The head and the numbers at a glance.
function showHead(now) {
  const job = now.job || {};
  const [word, tone] = STATES[now.state] || [now.state, ""];
  setText(byId("title"), job.script || "fleetx watch");
  setText(byId("state"), word);
  byId("state").className = `badge ${tone}`;
  document.title = `${word} · ${job.script || "fleetx watch"}`;
  const machines = job.nodes > 1 ? `${job.nodes} machines` : (job.hosts || [])[0] || "";
  const servers = job.servers ? `, ${job.servers} servers` : "";
  const attempt = job.attempt ? ` · attempt ${job.attempt + 1}` : "";
  const over = ["done", "failed", "lost"].includes(now.state);
  const lasted = job.began ? ` · ${duration((over ? job.last : now.at) - job.began)}` : "";
  const workers = job.workers ? `${job.workers} worker${job.workers === 1 ? "" : "s"}${servers} on ${machines}` : "";
  setText(byId("below"), workers + attempt + lasted);
  const tones = { stuck: "bad", failed: "bad", lost: "bad", hurt: "bad" };
  const shown = now.words && now.state !== "done" ? [make("p", { class: `note ${tones[now.state] || ""}` }, now.words)] : [];
  fill(byId("words"), ...shown);
}

function showTiles(now) {
  const totals = now.totals || {};
  const broken = (now.ranks || []).some((rank) => rank.not_finite);
  const alive = (now.ranks || []).filter((rank) => rank.state === "running").length;
  const tiles = [
    ["step", number(totals.step, 9)], ["loss", broken ? "not finite" : number(totals.loss, 4)],
    ["samples/s", number(totals.samples)], ["steps/s", number(totals.rate)],
    ["in exchanges", percent(totals.exchange)], ["memory, fullest rank", bytes(totals.memory)],
    ["ranks at work", `${alive} of ${(now.job || {}).workers || 0}`],
  ];
  const list = byId("tiles");
  if (list.children.length !== tiles.length) {
    fill(list, ...tiles.map(() => make("div", { class: "tile" }, make("dt"), make("dd"))));
  }
  tiles.forEach(([name, value], at) => {
    setText(list.children[at].firstChild, name);
    setText(list.children[at].lastChild, value);
  });
}

// Curves.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const scale = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * scale).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function showChart(id, column, digits, fromZero) {
  const box = byId(id), known = points.filter((point) => point[column] !== null);
  if (known.length < 2) {
    fill(box, make("div", { class: "empty" }, latest && latest.state === "waiting" ? "nothing yet" : "not told yet"));
    return;
  }
  const width = Math.max(240, box.clientWidth), height = 190, left = 52, right = 12, top = 10, bottom = 24;
  const times = known.map((point) => point[0]), values = known.map((point) => point[column]);
  const begin = times[0], end = Math.max(times[times.length - 1], begin + 1);
  let low = fromZero ? 0 : Math.min(...values), high = Math.max(...values);
  if (high <= low) { high = low + (Math.abs(low) || 1) * 0.1; }
  const pad = fromZero ? 0 : (high - low) * 0.06;
  low -= pad; high += (high - low) * 0.06;
  const x = (time) => left + (time - begin) / (end - begin) * (width - left - right);
  const y = (value) => top + (high - value) / (high - low) * (height - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": id });
  for (const value of ticks(low, high, 4)) {
    svg.append(draw("path", { class: "grid-line", d: `M${left} ${y(value)}H${width - right}` }));
    svg.append(draw("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  for (const share of [0, 0.5, 1]) {
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    const time = begin + share * (end - begin);
    svg.append(draw("text", { x: x(time), y: height - 6, "text-anchor": anchor }, clock(time)));
  }
  for (const time of restarts.filter((each) => each > begin && each < end)) {
    svg.append(draw("path", { class: "restart", d: `M${x(time)} ${top}V${height - bottom}` }));
  }
  const path = known.map((point, at) => `${at ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[column]).toFixed(1)}`).join("");
  const floor = height - bottom;
  svg.append(draw("path", { class: "area", d: `${path}L${x(times[times.length - 1]).toFixed(1)} ${floor}L${x(begin)} ${floor}Z` }));
  svg.append(draw("path", { class: "line", d: path }));
  const cross = draw("path", { class: "cross", d: "" }), dot = draw("circle", { class: "dot", r: 3.5, visibility: "hidden" });
  const said = draw("text", { y: top + 8, "text-anchor": "end", x: width - right });
  svg.append(cross, dot, said);
  const tell = (at) => {
    const point = known[at];
    cross.setAttribute("d", `M${x(point[0])} ${top}V${floor}`);
    dot.setAttribute("visibility", "visible");
    dot.setAttribute("cx", x(point[0]));
    dot.setAttribute("cy", y(point[column]));
    said.textContent = `step ${point[1]} · ${clock(point[0])} · ${number(point[column], digits)}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const place = (event.offsetX * width / svg.clientWidth - left) / (width - left - right);
    const time = begin + place * (end - begin);
    let best = 0;
    times.forEach((each, at) => { if (Math.abs(each - time) < Math.abs(times[best] - time)) best = at; });
    tell(best);
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("d", ""); dot.setAttribute("visibility", "hidden"); said.textContent = ""; });
  if (!box.matches(":hover")) fill(box, svg);
}

function showCharts() {
  showChart("loss", 2, 4, false);
  showChart("samples", 3, 3, true);
}

// The plan: every rank in its place of the mesh, coloured by how it is.
function tone(rank) {
  if (!rank) return "";
  if (FLAGS[rank.flag]) return FLAGS[rank.flag];
  return rank.state === "running" ? "running" : "";
}

function cell(svg, x, y, width, height, kind, label, title) {
  const box = draw("rect", { x, y, width, height, rx: 4, class: kind });
  box.append(draw("title", {}, title));
  svg.append(box);
  if (width >= 15) svg.append(draw("text", { class: "rank", x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle" }, label));
}

function meshPicture(mesh, ranks) {
  const { pp, dp, sharding, tp } = mesh;
  const shares = dp * sharding, inner = tp, room = 420, label = pp > 1 ? 52 : 0;
  const across = Math.min(shares, Math.max(4, Math.floor(16 / inner)));
  const down = Math.ceil(shares / across);
  const gap = inner > 1 ? 6 : 2, block = (room - label) / across, tall = 26;
  const one = (block - gap) / inner, stage = down * (tall + 3) + (pp > 1 ? 9 : 0);
  const svg = draw("svg", { viewBox: `0 0 ${room} ${pp * stage + 2}`, role: "img", "aria-label": "the mesh of the plan" });
  for (let p = 0; p < pp; p += 1) {
    if (pp > 1) svg.append(draw("text", { x: 0, y: p * stage + 18 }, `stage ${p}`));
    for (let s = 0; s < shares; s += 1) {
      for (let t = 0; t < inner; t += 1) {
        const number = (p * shares + s) * tp + t, rank = ranks.get(number);
        const x = label + (s % across) * block + t * one, y = p * stage + Math.floor(s / across) * (tall + 3) + 1;
        const words = rank ? `rank ${number}: ${rank.flag ? rank.flag + ", " : ""}${rank.doing || rank.state}` : `rank ${number}`;
        cell(svg, x, y, one, tall, tone(rank), String(number), words);
      }
    }
  }
  return svg;
}

function serverPicture(now) {
  const room = 420, count = now.job.workers, servers = now.servers || [];
  const ranks = new Map(now.ranks.map((rank) => [rank.rank, rank]));
  const rows = [[servers.length, "servers", (at) => ({ ...servers[at], flag: "" })], [count, "workers", (at) => ranks.get(at)]];
  const lines = (number) => Math.ceil(number / 12);
  const svg = draw("svg", { viewBox: `0 0 ${room} ${(lines(servers.length) + lines(count)) * 29 + 16}`, role: "img" });
  let y = 2;
  for (const [number, name, find] of rows) {
    svg.append(draw("text", { x: 0, y: y + 17 }, name));
    const wide = (room - 58) / Math.min(number, 12);
    for (let at = 0; at < number; at += 1) {
      const process = find(at);
      const kind = process && process.state === "failed" ? "bad" : tone(process);
      cell(svg, 58 + (at % 12) * wide, y + Math.floor(at / 12) * 29, wide - 3, 26, kind, String(at), `${name} ${at}`);
    }
    y += lines(number) * 29 + 10;
  }
  return svg;
}

function showPlan(now) {
  const plan = now.plan, box = byId("plan");
  const ranks = new Map((now.ranks || []).map((rank) => [rank.rank, rank]));
  const open = box.querySelector("details") ? box.querySelector("details").open : true;
  if (!plan) { fill(box, make("p", { class: "soft" }, "The script has not laid out a model yet.")); return; }
  const picture = make("div", { class: "mesh" }, now.servers && now.servers.length ? serverPicture(now) : meshPicture(plan.mesh, ranks));
  const used = Object.entries(plan.mesh).filter(([, size]) => size > 1).map(([axis, size]) => `${size} ${AXES[axis] || axis}`);
  const words = (now.servers || []).length ? "workers meet at the servers" : used.join(" × ") || "one worker";
  const flow = plan.strategies.map((each) => make("span", { class: each.at_rest ? "badge" : "badge accent", title: `${each.phase}${each.at_rest ? ", at rest" : ""}` }, each.name));
  const key = [["--good-soft", "at work"], ["--warn-soft", "slow or waiting"], ["--bad-soft", "stuck or dead"]].map(([colour, name]) => {
    const mark = make("i"); mark.style.background = `var(${colour})`;
    return make("span", {}, mark, name);
  });
  const more = make("details", {}, make("summary", {}, "in words"), make("pre", { class: "soft plan-words" }, plan.words));
  more.open = open;
  fill(box, make("p", { class: "soft" }, words), picture, make("div", { class: "legend" }, ...key),
    make("div", { class: "flow" }, ...(flow.length ? flow : [make("span", { class: "soft" }, "plain training, no strategy is on")])), more);
}

// Tables: rows are kept and only their texts change, so that scrolling and selecting go on.
function rowsOf(table, count, cells) {
  const body = byId(table).tBodies[0];
  while (body.rows.length > count) body.deleteRow(-1);
  while (body.rows.length < count) {
    const row = body.insertRow();
    for (const name of cells) row.insertCell().className = name;
  }
  return body.rows;
}

function bar(td, share, kind, text) {
  if (!td.firstChild || td.childElementCount !== 2) fill(td, make("span", { class: `bar ${kind}` }, make("i")), make("span"));
  td.firstChild.style.visibility = share === null ? "hidden" : "visible";
  td.firstChild.firstChild.style.width = `${Math.round(100 * Math.min(1, share || 0))}%`;
  setText(td.lastChild, text);
}

function showRanks(now) {
  const ranks = [...(now.ranks || [])].sort((a, b) => Boolean(b.flag) - Boolean(a.flag) || a.rank - b.rank);
  const fullest = Math.max(1, ...ranks.map((rank) => rank.memory_total || rank.memory || 0));
  const flagged = ranks.filter((rank) => rank.flag).length;
  setText(byId("rank-count"), flagged ? `${ranks.length}, ${flagged} to look at` : `${ranks.length}`);
  const rows = rowsOf("ranks", ranks.length, ["", "", "number", "number", "number", "", "", "number"]);
  ranks.forEach((rank, at) => {
    const row = rows[at], cells = row.cells, kind = FLAGS[rank.flag] || "";
    if (row.className !== kind) row.className = kind;
    row.dataset.rank = rank.rank;
    row.dataset.flag = rank.flag;
    setText(cells[0], String(rank.rank));
    const doing = rank.state === "running" ? rank.doing || "running" : rank.state;
    const key = [doing, rank.flag, rank.why].join("|");
    if (cells[1].dataset.key !== key) {
      cells[1].dataset.key = key;
      const mark = rank.flag ? [make("span", { class: `badge ${kind}` }, rank.flag), " "] : [];
      fill(cells[1], ...mark, doing, ...(rank.why ? [make("span", { class: "why" }, rank.why)] : []));
    }
    setText(cells[2], number(rank.step, 9));
    setText(cells[3], number(rank.rate));
    setText(cells[4], number(rank.samples));
    bar(cells[5], rank.memory ? rank.memory / (rank.memory_total || fullest) : null, "", bytes(rank.memory));
    bar(cells[6], rank.exchange, "exchange", percent(rank.exchange));
    setText(cells[7], rank.not_finite ? "not finite" : number(rank.loss, 4));
  });
}

function showServers(now) {
  const servers = now.servers || [];
  byId("server-card").hidden = !servers.length;
  const rows = rowsOf("servers", servers.length, ["", "", "number", "number", "number", "number", "number", "soft"]);
  servers.forEach((server, at) => {
    const cells = rows[at].cells;
    const tables = Object.entries(server.tables).map(([name, table]) => `${name} ${number(table.rows ?? table.numbers)}`);
    [server.rank, server.state, number(server.rows, 9), number(server.numbers, 9), number(server.pulled), number(server.pushed), bytes(server.memory), tables.join(", ")]
      .forEach((text, column) => setText(cells[column], String(text)));
  });
}

function showSaid(now) {
  const box = byId("said"), said = now.said || [], key = JSON.stringify(said.map((each) => each.at));
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const notes = [...said].reverse().map((each) => make("div", { class: "note warn" }, make("time", {}, clock(each.at)), make("pre", {}, each.text)));
  fill(box, ...(notes.length ? notes : [make("p", { class: "soft" }, "Nothing to worry about so far.")]));
}

function showLogs(now) {
  const names = now.logs && now.logs.length ? now.logs : [log], choice = byId("logs");
  if (choice.dataset.key === names.join()) return;
  choice.dataset.key = names.join();
  fill(choice, ...names.map((name) => make("option", { value: name }, name)));
  choice.value = log;
}

function showConsole(told) {
  const box = byId("console"), atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  setText(box, told.lines.join("\n").trimEnd() || "(nothing yet)");
  if (atEnd || box.dataset.log !== told.log) box.scrollTop = box.scrollHeight;
  box.dataset.log = told.log;
}

function show(now) {
  latest = now;
  points.push(...now.points);
  ({ restarts } = now);
  if (points.length > 4000) points = points.filter((_, at) => at % 2 || at > 3000);
  for (const part of [showHead, showTiles, showPlan, showRanks, showServers, showSaid, showLogs]) part(now);
  showCharts();
}

function live(word, kind) {
  setText(byId("live"), word);
  byId("live").className = `badge ${kind}`;
}

function connect() {
  if (source) source.close();
  const query = new URLSearchParams({ log, ...(TOKEN ? { token: TOKEN } : {}) });
  source = new EventSource(`events?${query}`);
  source.onopen = () => { points = []; live("live", "good"); };
  source.onerror = () => live("connection lost, trying again", "warn");
  source.addEventListener("anew", () => { points = []; });
  source.addEventListener("now", (event) => show(JSON.parse(event.data)));
  source.addEventListener("console", (event) => showConsole(JSON.parse(event.data)));
  source.addEventListener("closed", () => {
    source.close();
    live("the page has ended with the job; fleetx watch shows it again", "");
  });
}

byId("logs").addEventListener("change", (event) => { log = event.target.value; connect(); });
addEventListener("resize", () => { if (latest) showCharts(); });
connect();
