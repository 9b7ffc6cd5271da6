const dictionary = { // English, Chinese
  language: ["en", "zh-Hans"],
  knowledgeBase: ["Knowledge base", "知识库"], newConversation: ["New conversation", "新对话"],
  introTitle: ["Ask your documents", "向文档提问"],
  introText: ["Every answer shows the passages it rests on.", "每个回答都附上所依据的段落。"],
  question: ["Question", "问题"], placeholder: ["Ask a question…", "请输入问题…"],
  hint: ["Enter sends, Shift+Enter starts a new line", "按 Enter 发送，Shift+Enter 换行"],
  ask: ["Ask", "提问"], stop: ["Stop", "停止"],
  searching: ["Searching the documents…", "正在检索文档…"],
  reading: ["Reading the passages found…", "正在阅读找到的段落…"],
  searchedFor: ["Searched for: {}", "检索内容：{}"],
  sources: ["Sources", "来源"], sourceNumber: ["Source {}", "来源 {}"],
  otherPassages: ["Other passages found ({})", "其他找到的段落（{}）"],
  passagesFound: ["Passages found ({})", "找到的段落（{}）"],
  page: ["page {}", "第 {} 页"], line: ["line {}", "第 {} 行"],
  relevance: ["relevance {}", "相关度 {}"],
  nothingFound: ["Nothing was found in the documents for this question.", "文档中没有找到与此问题相关的内容。"],
  cut: ["The answer was cut at its length limit.", "回答已达到长度上限，被截断。"],
  noAnswer: ["No answer was given.", "没有给出回答。"], stopped: ["Stopped.", "已停止。"],
  brokeOff: ["The answer broke off.", "回答中断了。"],
  unreachable: ["The server cannot be reached.", "无法连接服务器。"],
  badStatus: ["The server could not answer (status {}).", "服务器无法回答（状态码 {}）。"],
  basesFailed: ["The list of knowledge bases could not be loaded.", "无法加载知识库列表。"],
};
const column = navigator.language.toLowerCase().startsWith("zh") ? 1 : 0;
const say = (key, value) => dictionary[key][column].replace("{}", () => value);

const byId = (id) => document.getElementById(id);
const questionBox = byId("question");
let history = []; // finished turns only
let running = null; // the AbortController of the answer being streamed
class Failure extends Error {} // its message is fit to be shown

function create(tag, className, ...children) {
  const element = Object.assign(document.createElement(tag), { className });
  element.append(...children); // a string becomes a text node, never markup
  return element;
}

// ---- Talking to the server
async function request(url, options) {
  const response = await fetch(url, options).catch(() => { throw new Failure(say("unreachable")); });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Failure(body?.error?.message || say("badStatus", response.status));
}

function askServer(question, signal) {
  const base = byId("base").value || "default";
  return request(`v1/knowledge-bases/${encodeURIComponent(base)}/ask`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ question, history, stream: true }),
    signal,
  });
}

async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) yield parseEvent(block);
  }
}

function parseEvent(block) {
  const event = { name: "comment", data: null };
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) event.name = line.slice(6).trim();
    if (line.startsWith("data:")) event.data = JSON.parse(line.slice(5));
  }
  return event;
}

// ---- One turn: a question, its answer and its sources
function addTurn(question) {
  const [search, text] = [create("p", "search"), create("p", "answer")];
  const notice = create("p", "notice", say("searching"));
  const live = create("div", "live", text, notice);
  live.ariaLive = "polite";
  live.ariaBusy = "true"; // so that it is read aloud once, not token by token
  const element = create("li", "turn running", create("h2", "question", question), search, live);
  byId("turns").append(element);
  return { question, answer: "", sources: [], element, search, live, text, notice };
}

async function runTurn(turn, signal) {
  try {
    await followStream(turn, signal);
  } catch (error) {
    if (signal.aborted) return closeTurn(turn, "stopped", say("stopped"));
    if (!(error instanceof Failure)) console.error(error);
    closeTurn(turn, "failed", error instanceof Failure ? error.message : say("brokeOff"));
  }
}

async function followStream(turn, signal) {
  const response = await askServer(turn.question, signal);
  for await (const { name, data } of readEvents(response.body)) {
    if (name === "sources") showSearch(turn, data);
    if (name === "token") showToken(turn, data.text);
    if (name === "error") throw new Failure(data.error?.message || say("brokeOff"));
    if (name === "done") return finishTurn(turn, data);
  }
  throw new Failure(say("brokeOff"));
}

function showSearch(turn, { question, sources }) {
  turn.sources = sources;
  if (question && question !== turn.question) turn.search.textContent = say("searchedFor", question);
  turn.notice.textContent = sources.length ? say("reading") : "";
}

function showToken(turn, text) {
  const page = document.documentElement;
  const atBottom = page.scrollHeight - page.clientHeight - page.scrollTop < 60;
  turn.notice.textContent = "";
  turn.answer += text;
  turn.text.append(text);
  if (atBottom) page.scrollTop = page.scrollHeight;
}

function finishTurn(turn, { answer, citations, finish_reason: reason }) {
  turn.answer = answer;
  if (answer) history.push({ role: "user", content: turn.question }, { role: "assistant", content: answer });
  const empty = turn.sources.length ? "noAnswer" : "nothingFound";
  const notice = reason === "length" ? say("cut") : answer ? "" : say(empty);
  closeTurn(turn, "finished", notice, citations);
}

function closeTurn(turn, state, notice, citations = []) {
  turn.element.className = `turn ${state}`;
  turn.notice.textContent = notice;
  showAnswer(turn, citations, showSources(turn, citations));
  turn.live.ariaBusy = "false";
}

// ---- Citations and sources
// The server counts characters by code point, JavaScript strings by UTF-16
// unit, so every offset is applied to an array of code points.
function showAnswer(turn, citations, sourceElements) {
  const characters = Array.from(turn.answer);
  const shown = new Set();
  let position = 0;
  turn.text.textContent = "";
  for (const citation of [...citations].sort((a, b) => a.answer_end - b.answer_end)) {
    const { answer_end: end, source } = citation;
    if (shown.has(`${end} ${source}`) || !sourceElements.has(source)) continue;
    shown.add(`${end} ${source}`);
    const button = citationButton(citation, sourceElements.get(source));
    turn.text.append(characters.slice(position, end).join(""), button);
    position = end;
  }
  turn.text.append(characters.slice(position).join(""));
}

function citationButton(citation, sourceElement) {
  const button = create("button", "citation", `[${citation.source}]`);
  const label = [say("sourceNumber", citation.source), citation.file, place(citation)];
  button.ariaLabel = label.filter(Boolean).join(", ");
  button.title = citation.quote;
  button.addEventListener("click", () => openSource(sourceElement, citation));
  return create("sup", "", button);
}

function openSource(element, citation) {
  element.open = true;
  element.querySelector("summary").focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
  element.querySelector(`mark[data-start="${Number(citation.start)}"]`)?.scrollIntoView({ block: "nearest" });
}

function showSources(turn, citations) {
  const elements = new Map();
  const [cited, others] = [[], []];
  for (const source of turn.sources) {
    const own = citations.filter((citation) => citation.source === source.index);
    elements.set(source.index, sourceElement(source, own));
    (own.length ? cited : others).push(elements.get(source.index));
  }
  if (cited.length) turn.element.append(create("h3", "", say("sources")), ...cited);
  if (others.length) turn.element.append(fold(others, cited.length ? "otherPassages" : "passagesFound"));
  return elements;
}

function fold(elements, titleKey) {
  return create("details", "fold", create("summary", "", say(titleKey, elements.length)), ...elements);
}

function sourceElement(source, citations) {
  const score = Number.isFinite(source.score) ? say("relevance", source.score.toFixed(2)) : "";
  const details = [place(source), source.heading, score].filter(Boolean);
  const summary = create("summary", "",
    create("span", "number", `[${source.index}]`), create("span", "file", source.file),
    ...details.map((detail) => create("span", "detail", detail)));
  return create("details", "source", summary, passageElement(source, citations));
}

function passageElement(source, citations) {
  const characters = Array.from(source.text);
  const passage = create("p", "passage");
  let position = 0;
  const ranges = citations.map((citation) => quoteRange(source, characters, citation));
  for (const { id, start, end } of ranges.sort((a, b) => a.start - b.start)) {
    if (end <= position) continue;
    const from = Math.max(start, position); // quotes may overlap
    const mark = create("mark", "", characters.slice(from, end).join(""));
    mark.dataset.start = id;
    passage.append(characters.slice(position, from).join(""), mark);
    position = end;
  }
  passage.append(characters.slice(position).join(""));
  return passage;
}

function quoteRange(source, characters, { start: id, end, quote }) {
  const start = id - source.start;
  const exact = start >= 0 && characters.slice(start, end - source.start).join("") === quote;
  if (exact) return { id, start, end: end - source.start };
  const found = quote ? source.text.indexOf(quote) : -1;
  if (found < 0) return { id, start: 0, end: 0 };
  const first = Array.from(source.text.slice(0, found)).length;
  return { id, start: first, end: first + Array.from(quote).length };
}

function place({ page, line }) {
  if (page != null) return say("page", page);
  return line != null ? say("line", line) : "";
}

// ---- The form and the conversation
function setRunning(controller) {
  running = controller;
  byId("submit").textContent = say(controller ? "stop" : "ask");
  byId("submit").classList.toggle("stop", controller !== null);
}

async function ask() {
  const question = questionBox.value.trim();
  if (running || !question) return questionBox.focus();
  const controller = new AbortController();
  setRunning(controller);
  questionBox.value = "";
  const turn = addTurn(question);
  turn.element.scrollIntoView({ block: "end" });
  await runTurn(turn, controller.signal);
  controller.abort(); // the connection is no longer needed, however the turn ended
  if (running === controller) setRunning(null);
}

function startConversation() {
  running?.abort();
  setRunning(null);
  history = [];
  byId("turns").replaceChildren();
  questionBox.focus();
}

function onSubmit(event) {
  event.preventDefault();
  if (running) running.abort();
  else ask();
}

function onKey(event) {
  // Safari ends a composition before its Enter key; code 229 still tells them apart.
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  ask();
}

async function loadBases() {
  const response = await request("v1/knowledge-bases");
  const { knowledge_bases: bases } = await response.json();
  byId("base").replaceChildren(...bases.map(({ name }) => new Option(name, name)));
  byId("base-field").hidden = bases.length < 2;
}

function translatePage() {
  document.documentElement.lang = say("language");
  const elements = document.querySelectorAll("[data-text]");
  for (const element of elements) element.textContent = say(element.dataset.text);
  questionBox.placeholder = say("placeholder");
}

translatePage();
byId("composer").addEventListener("submit", onSubmit);
byId("submit").addEventListener("click", (event) => {
  if (event.detail > 1) event.preventDefault(); // a double click on Ask must not stop the answer
});
questionBox.addEventListener("keydown", onKey);
byId("new-conversation").addEventListener("click", startConversation);
loadBases().catch((error) => {
  byId("page-notice").textContent = `${say("basesFailed")} ${error instanceof Failure ? error.message : ""}`;
  byId("page-notice").hidden = false;
});
