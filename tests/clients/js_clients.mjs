// JavaScript clients, each led through a chat, a stream and a tool loop: URL MODEL NAME.
// Runs in a folder whose node_modules hold the clients; see run.py for what the server says.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.cwd() + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const [url, model, name] = process.argv.slice(2);
const ANSWER = "It is 21 degrees in Paris.";
const QUESTION = "What is the weather in Paris?";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};

async function openai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
  const messages = [{ role: "user", content: QUESTION }];
  const whole = await client.chat.completions.create({ model, messages });
  assert.equal(whole.choices[0].message.content, ANSWER);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, ANSWER);
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const first = await client.chat.completions.create({ model, messages, tools });
  const call = first.choices[0].message.tool_calls[0];
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  messages.push(first.choices[0].message);
  messages.push({ role: "tool", tool_call_id: call.id, content: "21 degrees" });
  const second = await client.chat.completions.create({ model, messages, tools });
  assert.equal(second.choices[0].message.content, ANSWER);
  const response = await client.responses.create({ model, input: QUESTION });
  assert.equal(response.output_text, ANSWER);
}

async function anthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "k" });
  const messages = [{ role: "user", content: QUESTION }];
  const whole = await client.messages.create({ model, max_tokens: 64, messages });
  assert.equal(whole.content[0].text, ANSWER);
  const tools = [{ name: "get_weather", input_schema: parameters }];
  const first = await client.messages
    .stream({ model, max_tokens: 64, messages, tools })
    .finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  assert.deepEqual(call.input, { city: "Paris" });
  messages.push({ role: "assistant", content: first.content });
  messages.push({
    role: "user",
    content: [{ type: "tool_result", tool_use_id: call.id, content: "21 degrees" }],
  });
  const second = await client.messages.create({ model, max_tokens: 64, messages, tools });
  assert.equal(second.content[0].text, ANSWER);
}

async function loop(served) {
  const { generateText, streamText, tool, stepCountIs, jsonSchema } = await load("ai");
  const whole = await generateText({ model: served, prompt: QUESTION });
  assert.equal(whole.text, ANSWER);
  let text = "";
  for await (const piece of streamText({ model: served, prompt: QUESTION }).textStream) text += piece;
  assert.equal(text, ANSWER);
  const get_weather = tool({
    description: "The weather of a city.",
    inputSchema: jsonSchema(parameters),
    execute: async ({ city }) => `21 degrees in ${city}`,
  });
  const looped = await generateText({
    model: served,
    prompt: QUESTION,
    tools: { get_weather },
    stopWhen: stepCountIs(3),
  });
  assert.equal(looped.text, ANSWER);
  assert.equal(looped.steps.length, 2);
}

async function aiCompatible() {
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({
    name: "local",
    baseURL: `${url}/v1`,
    apiKey: "k",
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  await loop(provider(model));
}

async function aiResponses() {
  const { createOpenResponses } = await load("@ai-sdk/open-responses");
  const provider = createOpenResponses({ name: "local", url: `${url}/v1/responses`, apiKey: "k" });
  await loop(provider(model));
}

const clients = {
  "openai-node": openai,
  "anthropic-node": anthropic,
  "ai-sdk": aiCompatible,
  "ai-sdk-responses": aiResponses,
};
await clients[name]();
