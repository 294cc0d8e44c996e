// A loop of one's own over the MCP SDK for TypeScript and the OpenAI SDK (npm install @modelcontextprotocol/sdk openai).

import { readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import OpenAI from "openai";

const headers = { Authorization: `Bearer ${process.env.GYMCP_MCP_KEY}` };
const transport = new StreamableHTTPClientTransport(new URL(process.env.GYMCP_MCP_URL), { requestInit: { headers } });
const session = new Client({ name: "agent", version: "1" });
await session.connect(transport);
const tools = (await session.listTools()).tools.map(({ name, description, inputSchema }) => ({
  type: "function",
  function: { name, description, parameters: inputSchema },
}));
const model = new OpenAI();
const messages = [{ role: "user", content: readFileSync(0, "utf8") }];
for (;;) {
  const answer = await model.chat.completions.create({ model: process.env.GYMCP_MODEL, messages, tools });
  const message = answer.choices[0].message;
  messages.push(message);
  if (!message.tool_calls?.length) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls) {
    const result = await session.callTool({ name: call.function.name, arguments: JSON.parse(call.function.arguments) });
    messages.push({ role: "tool", tool_call_id: call.id, content: result.content.map((part) => part.text).join("") });
  }
}
await session.close();
