// The page: a list of runs with the queue, and one run as it trains. Everything arrives in one stream.
import { Board } from "./board.js";
import { Curve, short } from "./curve.js";
import { once, post, signIn, toast } from "./net.js";

const $ = (selector, within = document) => within.querySelector(selector);
const page = $("#run"), board = new Board();
const curves = {
  loss: new Curve($(".curves .curve", page), readoutIn(".curves"), "validation"),
  reward: new Curve($(".rewards .curve", page), readoutIn(".rewards"), "measured"),
};
const WIDE = matchMedia("(min-width: 900px)");
const COMMANDS = {
  pause: ["Pause"], resume: ["Continue", "primary"], sample: ["Sample now"], backup: ["Back up now"],
  resume_run: ["Resume run", "primary"], validate: ["Validate now"], save: ["Save now"], stop: ["Stop", "danger"],
};
const QUESTIONS = {
  skip: ["Stop NAME and continue with the next one? It writes a backup first.", "Stop it"],
  remove: ["Remove NAME from the queue?", "Remove"],
};
let overview = { runs: [], queue: { items: [] } }, stream, runId = "", run = emptyRun();

function emptyRun() {
  return { points: [], rewards: [], validations: [], measured: [], samples: new Map(), log: [], phase: {}, step: null, total: 0, first: 0, end: null, verdict: {}, state: { choices: [], files: [] } };
}

function readoutIn(section) {
  const made = document.createElement("span");
  made.className = "readout";
  $(`${section} h2`, page).append(made);
  return made;
}

function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function keyed(parent, items, keyOf, create, update) {
  // Keeps the elements of what stays, so that images do not flicker and the focus stays.
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const now = items.map((item) => {
    const key = String(keyOf(item));
    const child = before.get(key) ?? create(item);
    child.dataset.key = key;
    update?.(child, item);
    return child;
  });
  if (now.length !== parent.children.length || now.some((child, n) => child !== parent.children[n])) parent.replaceChildren(...now);
}

function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let rest = Math.max(0, Math.round(seconds));
  const parts = units.map(([size, name]) => { const n = Math.floor(rest / size); rest -= n * size; return n ? `${n} ${name}` : ""; });
  const start = parts.findIndex(Boolean);
  return start < 0 ? "0 s" : parts.slice(start, start + 2).filter(Boolean).join(" ");
}

function size(bytes) {
  let n = 0;
  for (; bytes >= 1000 && n < 4; n++) bytes /= 1000;
  return `${n ? bytes.toFixed(1) : bytes} ${["B", "kB", "MB", "GB", "TB"][n]}`;
}

const number = (value) => value.toLocaleString("en");
const imageOf = (id, image, version, isSmall) => `api/runs/${id}/samples/${image}?v=${version}${isSmall ? "&small" : ""}`;

// -- the list

function drawList() {
  const { runs, queue } = overview;
  const running = runs.filter((r) => r.status === "running"), earlier = runs.filter((r) => r.status !== "running");
  for (const [place, of] of [["#running", running], ["#earlier", earlier]]) {
    $(place).hidden = !of.length;
    keyed($(`${place} .rows`), of, (r) => r.id, () => makeRow(), drawRow);
  }
  $("#run-queue").hidden = !queue.can_run;
  $("#queue .hint").textContent = queue.problem || (queue.running ? "The queue is running." : queue.can_run ? "The queue does not run." : "Nothing waits.");
  const isOpen = (item) => ["waiting", "interrupted", "running"].includes(item.state);
  const ended = queue.items.filter((item) => !isOpen(item)), key = (item) => `${item.number} ${item.state}`;
  keyed($("#queue .rows"), queue.items.filter(isOpen), key, makeItem, drawItem);
  $("#queue details").hidden = !ended.length;
  $("#queue summary").textContent = `${ended.length} ended`;
  keyed($("#queue details .rows"), ended, key, makeItem, drawItem);
  document.body.classList.toggle("empty", !runs.length);
  if (!runId && WIDE.matches && runs.length && !location.hash.includes("token=")) location.replace(`#/run/${(running[0] ?? runs[0]).id}`);
}

function makeRow() {
  const row = make("a", "row");
  const thumb = new Image(48, 48);
  thumb.className = "thumb";
  thumb.alt = "";
  row.append(thumb, make("span", "name"), make("span", "left"), make("span", "sub"), make("progress"));
  return row;
}

function drawRow(row, of) {
  const isRunning = of.status === "running";
  row.href = `#/run/${of.id}`;
  row.classList.toggle("chosen", of.id === runId && WIDE.matches);
  const thumb = $(".thumb", row), source = of.thumb ? imageOf(of.id, of.thumb, of.samples, true) : "icon.svg";
  if (thumb.getAttribute("src") !== source) thumb.src = source;
  $(".name", row).textContent = of.name;
  $(".left", row).textContent = isRunning ? (of.left ? `${duration(of.left)} left` : "") : when(of.started);
  const steps = of.total ? (of.step >= of.total ? `${number(of.step)} steps` : `step ${number(of.step)} of ${number(of.total)}`) : "";
  $(".sub", row).textContent = [isRunning ? of.phase : of.label, steps, of.remote && isRunning ? `on ${of.remote}` : ""].filter(Boolean).join(" · ");
  const bar = $("progress", row);
  bar.hidden = !isRunning;
  bar.value = of.total ? of.step / of.total : 0;
}

function when(text) {
  if (!text) return "";
  const at = new Date(text), today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : at.toLocaleDateString([], { day: "numeric", month: "short" });
}

function makeItem(item) {
  const row = make("div", "row item"), tools = make("div", "tools");
  const tool = (sign, label, action) => {
    const button = make("button", sign.length > 1 ? "small" : "icon", sign);
    button.title = button.ariaLabel = label;
    button.addEventListener("click", async () => {
      const question = QUESTIONS[action];
      if (!question || (await confirm(question[0].replace("NAME", item.name), question[1]))) post("queue", { action, number: item.number });
    });
    tools.append(button);
  };
  if (item.state === "waiting") {
    tool("↑", "Earlier", "up");
    tool("↓", "Later", "down");
  }
  if (item.state === "running") tool("Skip", "Stop this run and continue with the next one", "skip");
  else {
    if (item.state !== "waiting" && item.state !== "interrupted") tool("↻", "Train it again", "repeat");
    tool("✕", "Remove from the queue", "remove");
  }
  row.append(make("span", "name"), make("span", "sub"), tools);
  return row;
}

function drawItem(row, item) {
  $(".name", row).textContent = item.name;
  const label = item.machine ? `${item.label} on ${item.machine}` : item.label;
  $(".sub", row).textContent = item.message.startsWith(item.label) ? item.message : [label, item.message].filter(Boolean).join(" · ");
}

// -- a run

const thinned = (points) => (points.length > 1600 ? points.filter((_, n) => n % 2 || n > 1500) : points);

function apply(event) {
  // Folds an event into the run that is shown.
  if (event.log) run.log.push(event.log);
  switch (event.kind) {
    case "started": {
      // What an earlier attempt did after the step from which this one resumes is lost.
      const keep = (list) => list.filter((p) => p[0] <= event.first);
      Object.assign(run, { total: event.total, first: event.first, step: null, end: null, points: keep(run.points), rewards: keep(run.rewards), validations: keep(run.validations), measured: keep(run.measured) });
      for (const [row, samples] of run.samples) run.samples.set(row, samples.filter((s) => s.step <= event.first));
      break;
    }
    case "phase": run.phase = event; break;
    case "step":
      run.step = event;
      run.total = event.total;
      run.points.push([event.step, event.loss, event.smooth]);
      if (event.reward !== null) run.rewards.push([event.step, event.reward, null]);
      Object.assign(run, { points: thinned(run.points), rewards: thinned(run.rewards) });
      break;
    case "validation": if (event.loss !== null) run.validations.push([event.step, event.loss]); break;
    case "measured": if (event.reward !== null) run.measured.push([event.step, event.reward]); break;
    case "sample": {
      const before = (run.samples.get(event.row) ?? []).filter((s) => s.step !== event.step);
      if (event.id) run.samples.set(event.row, [event, ...before]);
      break;
    }
    case "end": run.end = event; break;
  }
}

function drawRun() {
  const shown = overview.runs.find((r) => r.id === runId), { state, step, end } = run;
  const isRunning = Boolean(state.running), isStarting = Boolean(state.starting), isPaused = run.phase.phase === "paused";
  page.hidden = !shown;
  if (!shown) return;
  $("h1", page).textContent = shown.name;
  const pill = $(".pill", page);
  pill.textContent = isStarting ? "Starting" : isRunning ? run.phase.label || "Starting" : end?.label ?? shown.label;
  pill.className = `pill ${isRunning || isStarting ? "running" : end?.status ?? shown.status}`;
  const message = $(".message", page), text = isRunning || isStarting ? "" : state.refused || (end?.text ?? shown.message);
  message.hidden = !text;
  message.textContent = text;
  message.className = `message ${state.refused ? "failed" : end?.status ?? shown.status}`;
  const done = step?.step ?? run.first, total = run.total || shown.total, share = total ? done / total : 0;
  $(".share", page).textContent = total ? `${Math.floor(share * 100)} %` : "–";
  $(".progress .left", page).textContent = isRunning && shown.left ? `${duration(shown.left)} left` : !isRunning && shown.seconds ? `in ${duration(shown.seconds)}` : "";
  $(".progress progress", page).value = share;
  $(".where", page).textContent = [total && `Step ${number(done)} of ${number(total)}`, step && `epoch ${step.epoch} of ${step.epochs}`, state.remote && `on ${state.remote}`].filter(Boolean).join(" · ");
  $(".numbers", page).textContent = step ? [step.smooth !== null && `loss ${short(step.smooth)}`, isRunning && step.speed && `${Number(step.speed.toPrecision(3)).toLocaleString("en")} images/s`].filter(Boolean).join(" · ") : run.phase.detail ?? "";
  drawActions(isRunning, isPaused, state, end?.status ?? shown.status);
  const open = board.open.length, choose = $(".choose", page);
  choose.hidden = !open;
  choose.textContent = `Choose images (${open} open)`;
  curves.loss.show(run.points, run.validations);
  $(".rewards", page).hidden = run.rewards.length + run.measured.length < 2;
  curves.reward.show(run.rewards, run.measured);
  const verdict = $(".verdict", page), { finding, title, reason, figures } = run.verdict;
  verdict.hidden = !title;
  verdict.className = `verdict ${finding}`;
  for (const [name, text] of Object.entries({ strong: title, ".reason": reason, ".figures": figures })) $(name, verdict).textContent = text ?? "";
  document.title = `${open ? `(${open}) Choose · ` : isRunning ? `${Math.floor(share * 100)} % · ` : ""}${shown.name} · Darkroom`;
}

function drawActions(isRunning, isPaused, state, status) {
  const names = isRunning ? [isPaused ? "resume" : "pause", "sample", "backup", "validate", "save", "stop"].filter((n) => n !== "validate" || run.validations.length) : [];
  if (!isRunning && !state.starting && state.remote && !run.end) names.push("follow");
  if (!isRunning && !state.starting && (state.remote || state.backups) && ["stopped", "failed", "crashed"].includes(status)) names.push("resume_run");
  // Pause becomes Continue in the same element: the second click of a double click is not one on another button.
  keyed($(".actions", page), names, (name) => (name === "resume" ? "pause" : name), () => {
    const button = make("button");
    button.addEventListener("click", () => once(button, () => act(button.value)));
    return button;
  }, (button, name) => {
    const [label, kind] = COMMANDS[name] ?? [`Follow on ${state.remote}`, "primary"];
    Object.assign(button, { value: name, textContent: label, className: kind ?? "" });
  });
}

async function act(name) {
  if (name === "stop" && !(await confirm("Stop this run? It writes a backup first, from which it can be resumed.", "Stop"))) return;
  await post(`runs/${runId}/command`, { command: name });
}

function confirm(text, label) {
  const dialog = $("#confirm");
  $("p", dialog).textContent = text;
  $(".danger", dialog).textContent = label;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

function drawSamples() {
  const strips = [...run.samples].filter(([, samples]) => samples.length);
  $(".samples", page).hidden = !strips.length;
  keyed($(".strips", page), strips, ([row]) => `${runId} ${row}`, () => {
    const strip = make("div", "strip");
    strip.append(make("p"), make("div"));
    return strip;
  }, (strip, [row, samples]) => {
    $("p", strip).textContent = samples[0].prompt;
    keyed($("div", strip), samples, (s) => `${s.step} ${s.at}`, (sample) => {
      const button = make("button"), image = new Image(132, 132);
      image.loading = "lazy";
      image.alt = `Step ${sample.step}`;
      image.src = imageOf(runId, sample.id, sample.at, true);
      button.append(image, `Step ${number(sample.step)}`);
      button.addEventListener("click", () => view(row, sample.step));
      return button;
    });
  });
}

function drawFiles() {
  const files = run.state.files;
  $(".files", page).hidden = !files.length;
  keyed($(".files .rows", page), files, (f) => f.id, (file) => {
    const row = make("div", "file"), text = make("span", "", file.name), link = make("a", "", "Download");
    text.append(make("small", "", `${size(file.bytes)}${file.result ? "" : ", saved during the run"}`));
    link.href = `api/runs/${runId}/files/${file.id}`;
    link.download = file.name;
    row.append(text, link);
    return row;
  });
}

function drawLog() {
  const list = $(".log ol", page);
  run.log = run.log.slice(-500);
  list.replaceChildren(...run.log.toReversed().map(({ at, text, tone }) => {
    const line = make("li", tone), time = make("time");
    time.textContent = at ? new Date(at * 1000).toLocaleTimeString([], { hour12: false }) : "";
    line.append(time, make("span", "", text));
    return line;
  }));
}

// -- the viewer of a sample

const viewer = $("#viewer");
let viewed = null;

function view(row, step) {
  const samples = run.samples.get(row) ?? [], n = samples.findIndex((s) => s.step === step);
  if (n < 0) return;
  viewed = { row, newer: samples[n - 1]?.step, older: samples[n + 1]?.step };
  $("img", viewer).src = imageOf(runId, samples[n].id, samples[n].at, false);
  $("p", viewer).textContent = `Step ${number(step)} · ${samples[n].prompt}`;
  $(".older", viewer).disabled = viewed.older === undefined;
  $(".newer", viewer).disabled = viewed.newer === undefined;
  if (!viewer.open) viewer.showModal();
}

const turn = (way) => viewed?.[way] !== undefined && view(viewed.row, viewed[way]);
$(".older", viewer).addEventListener("click", () => turn("older"));
$(".newer", viewer).addEventListener("click", () => turn("newer"));
$(".close", viewer).addEventListener("click", () => viewer.close());
viewer.addEventListener("keydown", (event) => ({ ArrowLeft: () => turn("older"), ArrowRight: () => turn("newer") })[event.key]?.());
let touched = 0;
viewer.addEventListener("touchstart", (event) => { touched = event.touches.length === 1 ? event.touches[0].clientX : NaN; }, { passive: true });
viewer.addEventListener("touchend", (event) => {
  const moved = event.changedTouches[0].clientX - touched;
  if (Math.abs(moved) > 50) turn(moved > 0 ? "older" : "newer");
});

// -- the stream

const HIDDEN_MS = 30000;
let waiting;

function listen() {
  run = emptyRun();
  board.update(runId, []);
  connect();
}

function rest() {
  // A hidden page looks now and then, for its title: it would hold one of the six connections that browsers open.
  if (!stream || stream.readyState === EventSource.CLOSED) return;
  stream.close();
  waiting = setTimeout(connect, HIDDEN_MS);
}

function connect() {
  clearTimeout(waiting);
  stream?.close();
  stream = new EventSource(`api/stream${runId ? `?run=${runId}` : ""}`);
  const on = (kind, handle) => stream.addEventListener(kind, (event) => { $("#connection").textContent = ""; handle(JSON.parse(event.data)); });
  on("overview", (content) => { overview = content; drawList(); if (runId) drawRun(); if (document.hidden) rest(); });
  on("history", (events) => { const { state } = run; run = { ...emptyRun(), state }; events.forEach(apply); drawAll(); });
  on("news", (events) => { events.forEach(apply); drawRun(); if (events.some((e) => e.kind === "sample" || e.kind === "started")) drawSamples(); if (events.some((e) => e.log)) drawLog(); });
  on("verdict", (verdict) => { run.verdict = verdict; drawRun(); });
  on("state", (state) => { run.state = state; board.update(runId, state.choices); drawFiles(); drawRun(); });
  stream.onerror = lost;
}

async function lost() {
  $("#connection").textContent = "Connection lost. Trying again…";
  if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
  const asking = new AbortController(); // the stream itself does not report why it was refused
  const status = await fetch(stream.url, { signal: asking.signal }).then((r) => r.status, () => 0);
  asking.abort();
  if (status === 401) return logIn();
  if (status === 404 && runId) { location.hash = "#/"; toast("This run is not there any more.", true); return; }
  setTimeout(listen, 3000);
}

function drawAll() { drawRun(); drawSamples(); drawFiles(); drawLog(); }

function route() {
  runId = location.hash.match(/^#\/run\/(\w+)$/)?.[1] ?? "";
  document.body.dataset.view = runId ? "run" : "list";
  page.hidden = true;
  if (!runId) document.title = "Darkroom";
  scrollTo(0, 0);
  listen();
}

function logIn() {
  const dialog = $("#login");
  if (!dialog.open) dialog.showModal();
}

$("#login").addEventListener("cancel", (event) => event.preventDefault());
$("#login form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = event.target.elements.token;
  if (await signIn(field.value.trim())) { $("#login").close(); begin(); }
  else $(".wrong").textContent = "This is not the token.";
});
$(".choose", page).addEventListener("click", () => board.show());
$("#run-queue").addEventListener("click", (event) => once(event.target, () => post("queue", { action: "run" })));
$("#start").addEventListener("submit", (event) => {
  event.preventDefault();
  once(event.submitter, () => post("start", { preset: $("select", event.target).value }));
});
addEventListener("hashchange", route);
WIDE.addEventListener("change", drawList);
document.addEventListener("visibilitychange", () => { if (document.hidden) rest(); else if (stream?.readyState === EventSource.CLOSED) connect(); });

async function begin() {
  const token = location.hash.match(/^#token=([\w-]+)$/)?.[1];
  if (token) {
    await signIn(token);
    history.replaceState(null, "", "./");
  }
  const response = await fetch("api/presets");
  if (response.status === 401) return logIn();
  const presets = await response.json();
  $("#start select").replaceChildren(...presets.map(({ id, name }) => Object.assign(make("option", "", name.replace(/^#/, "")), { value: id })));
  route();
}

begin();
