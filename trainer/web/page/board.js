// The choice board: the better of two images, or the best and the worst of several.
import { post } from "./net.js";

const dialog = document.querySelector("#board");
const find = (selector) => dialog.querySelector(selector);

export class Board {
  constructor() {
    this.run = null;
    this.requests = [];
    this.answered = []; // names, in order, that can be taken back
    this.sent = new Set(); // answered here, while the stream does not show it yet
    this.best = null;
    this.shown = "";
    find(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("keydown", (event) => this.key(event));
    for (const button of dialog.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this[button.dataset.do]());
    }
  }

  get open() { return this.requests.filter((r) => r.open && !this.sent.has(r.name)); }

  update(run, requests) {
    if (run !== this.run) Object.assign(this, { run, answered: [], best: null, shown: "" });
    for (const name of this.sent) if (!requests.some((r) => r.name === name && r.open)) this.sent.delete(name);
    const names = new Set(requests.map((r) => r.name));
    this.answered = this.answered.filter((name) => names.has(name));
    this.requests = requests;
    this.draw();
  }

  show() {
    this.draw();
    if (!dialog.open) dialog.showModal();
  }

  draw() {
    const open = this.open, request = open[0], place = find(".candidates");
    const total = this.requests.length;
    find(".count").textContent = request ? `${total - open.length + 1} of ${total}` : "";
    find(".prompt").textContent = request ? request.prompt.trim() || "(no prompt)" : "";
    find(".question").textContent = request ? question(request, this.best) : "";
    find('[data-do="tie"]').disabled = find('[data-do="skip"]').disabled = !request;
    find('[data-do="undo"]').disabled = this.best === null && !this.answered.length;
    if (!request) {
      this.shown = "";
      place.classList.remove("waiting", "many");
      const text = document.createElement("p");
      text.className = "done";
      text.textContent = "Thank you. The run continues, and its next images appear here.";
      place.replaceChildren(text);
      return;
    }
    if (this.shown !== request.name) this.load(request, place);
    [...place.children].forEach((button, n) => button.classList.toggle("best", n === this.best));
  }

  async load(request, place) {
    this.shown = request.name;
    place.classList.add("waiting"); // an image that is not there yet cannot be chosen
    place.classList.toggle("many", request.images > 2);
    place.style.setProperty("--columns", Math.min(request.images, 4));
    place.style.setProperty("--rows", Math.ceil(request.images / 4));
    const images = Array.from({ length: request.images }, (_, n) => {
      const image = new Image();
      image.src = `api/runs/${this.run}/choices/${encodeURIComponent(request.name)}/${n}`;
      image.alt = `Image ${n + 1}`;
      return image;
    });
    place.replaceChildren(...images.map((image, n) => {
      const button = document.createElement("button");
      button.append(image);
      button.addEventListener("click", () => this.pick(n));
      return button;
    }));
    await Promise.allSettled(images.map((image) => image.decode()));
    if (this.shown === request.name) place.classList.remove("waiting");
  }

  get isReady() { return this.open.length > 0 && !find(".candidates").classList.contains("waiting"); }

  pick(number) {
    const request = this.open[0];
    if (!this.isReady || number >= request.images) return;
    if (request.images === 2) this.answer({ best: number, worst: 1 - number });
    else if (this.best === null) { this.best = number; this.draw(); }
    else if (this.best === number) this.undo();
    else this.answer({ best: this.best, worst: number });
  }

  tie() { if (this.isReady) this.answer({ verdict: "tie" }); }
  skip() { if (this.isReady) this.answer({ verdict: "skip" }); }

  async undo() {
    if (this.best !== null) { this.best = null; this.draw(); return; }
    const name = this.answered.pop();
    if (!name) return;
    if (await post(`runs/${this.run}/choices/${encodeURIComponent(name)}`, { undo: true })) {
      this.sent.delete(name);
      this.requests = this.requests.map((r) => (r.name === name ? { ...r, open: true } : r));
    }
    this.draw();
  }

  async answer(given) {
    const { name } = this.open[0];
    this.best = null;
    this.sent.add(name);
    this.answered.push(name);
    this.draw();
    if (!(await post(`runs/${this.run}/choices/${encodeURIComponent(name)}`, given))) {
      this.answered = this.answered.filter((n) => n !== name);
      this.sent.delete(name);
      this.draw();
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const two = this.open[0]?.images === 2;
    const act = { t: () => this.tie(), ArrowDown: () => this.tie(), s: () => this.skip(), u: () => this.undo(), Backspace: () => this.undo() }[event.key]
      ?? (two && { ArrowLeft: () => this.pick(0), ArrowRight: () => this.pick(1) }[event.key])
      ?? (/^[1-9]$/.test(event.key) && (() => this.pick(Number(event.key) - 1)));
    if (!act) return;
    event.preventDefault();
    act();
  }
}

function question(request, best) {
  if (request.images === 2) return "Which image is better for this prompt?";
  return best === null ? "Choose the best image for this prompt, then the worst." : "Now choose the worst image.";
}
