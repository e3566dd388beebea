// Requests to Darkroom, and what they answer.
const place = document.querySelector("#toast");
let timer;

export function toast(text, isError = false) {
  if (!text) return;
  place.textContent = text;
  place.className = isError ? "shown error" : "shown";
  clearTimeout(timer);
  timer = setTimeout(() => (place.className = ""), isError ? 6000 : 3000);
}

export async function post(path, body) {
  // Sends a command; returns whether it was carried out, and shows what Darkroom answers.
  try {
    const response = await fetch(`api/${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-darkroom": "1" },
      body: JSON.stringify(body),
    });
    const { message } = await response.json();
    toast(message, !response.ok);
    return response.ok;
  } catch {
    toast("Darkroom does not answer. Check that its page is still switched on.", true);
    return false;
  }
}

export async function once(button, work) {
  // Does the work of a click; further clicks until a moment after it, as of a double click, do nothing.
  if (button.ariaDisabled === "true") return;
  button.ariaDisabled = "true";
  try { await work(); } finally { setTimeout(() => (button.ariaDisabled = "false"), 500); }
}

export async function signIn(token) {
  const response = await fetch("api/login", {
    method: "POST",
    headers: { "content-type": "application/json", "x-darkroom": "1" },
    body: JSON.stringify({ token }),
  });
  return response.ok;
}
