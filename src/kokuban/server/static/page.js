// The page's only script: a chat over the public API, and the numbers of /stats twice a second.
// Whatever comes from the server or from a person goes into the page as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const empty = $("empty");
let conversation = [];
let running = null; // AbortController of the answer that is being streamed
let before = null; // the last /stats, for the rate
let lost = false; // whether the last /stats could not be had

function headers() {
  const key = $("key").value.trim();
  const fields = { "content-type": "application/json" };
  if (key) fields.authorization = `Bearer ${key}`;
  return fields;
}

function show(role, text) {
  const article = document.createElement("article");
  article.className = role;
  const title = document.createElement("h2");
  title.textContent = role;
  const body = document.createElement("p");
  body.textContent = text;
  article.append(title, body);
  empty.remove();
  $("talk").append(article);
  article.scrollIntoView({ block: "end" });
  return body;
}

function tell(text, isBad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", isBad);
}

// For screen readers: an answer is read once and whole, not again with every token.
function say(text) {
  const line = document.createElement("p");
  line.textContent = text;
  $("said").replaceChildren(line);
}

async function fault(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answers with status ${response.status}`);
}

async function poll() {
  try {
    const response = await fetch("/stats", { headers: headers(), signal: AbortSignal.timeout(5000) });
    if (response.status === 401) {
      $("key-row").hidden = false;
      throw new Error("this server wants an API key");
    }
    if (!response.ok) throw await fault(response);
    draw(await response.json());
    if (lost) tell("");
    lost = false;
  } catch (error) {
    const network = error instanceof TypeError || error.name === "TimeoutError";
    tell(network ? "the server does not answer" : error.message, true);
    lost = true;
    before = null;
    // No number is better than an old one.
    for (const id of ["running", "waiting", "rate", "step", "blocks"]) $(id).textContent = "–";
    $("pool").value = 0;
  }
}

async function keepPolling() {
  if (!document.hidden) await poll();
  setTimeout(keepPolling, 500);
}

function draw(stats) {
  const used = stats.num_blocks - stats.free_blocks;
  $("model").textContent = stats.model;
  $("running").textContent = stats.running;
  $("waiting").textContent = stats.waiting;
  $("step").textContent = `${stats.step_ms.toFixed(1)} ms`;
  $("blocks").textContent = `${used.toLocaleString("en")} of ${stats.num_blocks.toLocaleString("en")}`;
  $("pool").value = stats.num_blocks ? used / stats.num_blocks : 0;
  const now = performance.now();
  if (before) {
    const rate = ((stats.output_tokens - before.tokens) * 1000) / (now - before.at);
    $("rate").textContent = Math.max(0, rate).toFixed(0);
  }
  before = { tokens: stats.output_tokens, at: now };
}

// Yields the JSON of each event of a stream.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
    }
  }
}

async function answer(turns, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    signal,
    body: JSON.stringify({
      model: $("model").textContent,
      messages: turns,
      temperature: Number($("temperature").value),
      max_tokens: Number($("max-tokens").value),
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) throw await fault(response);
  const reply = { role: "assistant", content: "" };
  const body = show("assistant", "");
  const start = performance.now();
  let finish = null;
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      finish = event.choices[0]?.finish_reason ?? finish;
      if (event.usage) report(event.usage, finish, start);
      append(body, event.choices[0]?.delta.content ?? "");
    }
  } finally {
    reply.content = body.textContent;
    if (reply.content) turns.push(reply);
    else body.parentElement.remove();
    say(reply.content);
  }
}

// Follows the text, unless the reader has scrolled up.
function append(body, text) {
  const talk = $("talk");
  const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 48;
  body.append(text);
  if (follows) talk.scrollTop = talk.scrollHeight;
}

function report(usage, finish, start) {
  const seconds = (performance.now() - start) / 1000;
  const cut = finish === "length" ? ", cut at max tokens" : "";
  tell(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s${cut}`);
}

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  tell("");
  const turns = conversation; // Clear begins another one; what still comes belongs to this one.
  turns.push({ role: "user", content: text });
  show("user", text);
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  $("prompt").focus();
  try {
    await answer(turns, running.signal);
  } catch (error) {
    failed(error, turns);
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    if (document.activeElement === document.body) $("prompt").focus();
  }
}

function failed(error, turns) {
  if (turns.at(-1).role === "user") {
    // Nothing was answered: the message goes back to where it can be sent again.
    const { content } = turns.pop();
    if (turns === conversation) $("prompt").value ||= content;
  }
  if (turns !== conversation) return;
  if (error.name === "AbortError") {
    tell("stopped");
    return;
  }
  const text = error instanceof TypeError ? "the connection to the server was lost" : error.message;
  show("error", text);
  say(text);
}

function clear() {
  running?.abort();
  conversation = [];
  $("talk").replaceChildren(empty);
  $("said").replaceChildren();
  tell("");
  $("prompt").focus();
}

$("form").addEventListener("submit", send);
$("clear").addEventListener("click", clear);
$("stop").addEventListener("click", () => running?.abort());
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
keepPolling();
