// The page's only script: a chat over the public API, and the numbers of /stats twice a second.
"use strict";

const $ = (id) => document.getElementById(id);
let conversation = [];
let running = null; // AbortController of the answer that is being streamed
let before = null; // the last /stats, for the rate

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
  $("talk").append(article);
  scroll();
  return body;
}

function scroll() {
  const talk = $("talk");
  talk.scrollTop = talk.scrollHeight;
}

async function poll() {
  try {
    const response = await fetch("/stats", { headers: headers() });
    if (response.status === 401) {
      $("key-row").hidden = false;
      return;
    }
    draw(await response.json());
  } catch {
    $("status").textContent = "the server does not answer";
  }
}

function draw(stats) {
  const used = stats.num_blocks - stats.free_blocks;
  $("model").textContent = stats.model;
  $("running").textContent = stats.running;
  $("waiting").textContent = stats.waiting;
  $("step").textContent = `${stats.step_ms.toFixed(1)} ms`;
  $("blocks").textContent = `${used} of ${stats.num_blocks}`;
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

async function answer(signal) {
  const turns = conversation; // Clear begins another one; what still comes belongs to this one
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
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reply = { role: "assistant", content: "" };
  const body = show("assistant", "");
  const start = performance.now();
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      reply.content += event.choices[0]?.delta.content ?? "";
      body.textContent = reply.content;
      scroll();
      if (event.usage) report(event.usage, start);
    }
  } finally {
    turns.push(reply);
  }
}

function report(usage, start) {
  const seconds = (performance.now() - start) / 1000;
  $("status").textContent =
    `${usage.prompt_tokens} + ${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`;
}

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  $("status").textContent = "";
  conversation.push({ role: "user", content: text });
  show("user", text);
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  try {
    await answer(running.signal);
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    $("prompt").focus();
  }
}

function clear() {
  running?.abort();
  conversation = [];
  $("talk").replaceChildren();
  $("status").textContent = "";
}

$("form").addEventListener("submit", send);
$("clear").addEventListener("click", clear);
$("stop").addEventListener("click", () => running?.abort());
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
setInterval(() => document.hidden || poll(), 500);
poll();
