// JavaScript clients, each led through a chat, a stream and a tool loop:
// URL MODEL NAME scripted|real. Runs in a folder whose node_modules hold the clients. What the server
// says is known of the scripted model; a real one is made to call and says what it likes.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.cwd() + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const [url, model, name, kind] = process.argv.slice(2);
const scripted = kind === "scripted";
const ANSWER = "It is 21 degrees in Paris.";
const QUESTION = "What is the weather in Paris?";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};

const check = (text) => (scripted ? assert.equal(text, ANSWER) : assert.ok(text));
const checkCall = (args) =>
  scripted ? assert.deepEqual(args, { city: "Paris" }) : assert.equal(typeof args.city, "string");
// What makes a model call that would not do so by itself.
const forced = (value) => (scripted ? {} : value);
const greedy = { max_tokens: 512, temperature: 0 };

async function openai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
  const messages = [{ role: "user", content: QUESTION }];
  const asked = { model, messages, ...greedy };
  const whole = await client.chat.completions.create(asked);
  check(whole.choices[0].message.content);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  check(text);
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const first = await client.chat.completions.create({
    ...asked,
    tools,
    ...forced({ tool_choice: "required" }),
  });
  const call = first.choices[0].message.tool_calls[0];
  checkCall(JSON.parse(call.function.arguments));
  messages.push(first.choices[0].message);
  messages.push({ role: "tool", tool_call_id: call.id, content: "21 degrees" });
  const second = await client.chat.completions.create({ ...asked, tools });
  check(second.choices[0].message.content);
  const response = await client.responses.create({
    model,
    input: QUESTION,
    max_output_tokens: 512,
    temperature: 0,
  });
  check(response.output_text);
}

async function anthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "k" });
  const messages = [{ role: "user", content: QUESTION }];
  const asked = { model, messages, ...greedy };
  const whole = await client.messages.create(asked);
  check(whole.content[0].text);
  const tools = [{ name: "get_weather", input_schema: parameters }];
  const first = await client.messages
    .stream({ ...asked, tools, ...forced({ tool_choice: { type: "any" } }) })
    .finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  checkCall(call.input);
  messages.push({ role: "assistant", content: first.content });
  messages.push({
    role: "user",
    content: [{ type: "tool_result", tool_use_id: call.id, content: "21 degrees" }],
  });
  const second = await client.messages.create({ ...asked, tools });
  check(second.content[0].text);
}

async function loop(served) {
  const { generateText, streamText, tool, stepCountIs, jsonSchema } = await load("ai");
  const asked = { model: served, prompt: QUESTION, maxOutputTokens: 512, temperature: 0 };
  const whole = await generateText(asked);
  check(whole.text);
  let text = "";
  for await (const piece of streamText(asked).textStream) text += piece;
  check(text);
  const get_weather = tool({
    description: "The weather of a city.",
    inputSchema: jsonSchema(parameters),
    execute: async ({ city }) => `21 degrees in ${city}`,
  });
  const looped = await generateText({
    ...asked,
    tools: { get_weather },
    stopWhen: stepCountIs(3),
    prepareStep: ({ stepNumber }) =>
      stepNumber === 0 ? forced({ toolChoice: "required" }) : { toolChoice: "auto" },
  });
  check(looped.text);
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
