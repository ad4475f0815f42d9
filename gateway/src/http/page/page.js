// Shows what the JSON API says, once a second. Every text goes in through textContent: nothing of the node is markup.
'use strict';

const EVERY_MS = 1000;
const ANSWER_MAX_MS = 5000;
// Steps of the lineage that are drawn: the newest.
const STEPS_DRAWN = 14;
const STEP_PX = 24;
const SHORTEST_LOOK_S = 0.4;
const OPERATIONS_SHOWN = 12;
// More ranges than this are drawn without words in them.
const CELLS_WITH_WORDS = 48;

const $ = (id) => document.getElementById(id);

/** An element with properties, data attributes and children (texts or elements). */
function make(tag, { cls, data, style, ...rest } = {}, ...children) {
  const element = document.createElement(tag);
  if (cls) element.className = cls;
  Object.assign(element, rest);
  Object.assign(element.dataset, data);
  for (const [key, value] of Object.entries(style ?? {})) element.style.setProperty(key, value);
  element.append(...children);
  return element;
}

/** Replaces the children only where they differ, so that what is selected or focused stays. */
function fill(parent, ...children) {
  const next = make(parent.tagName.toLowerCase(), {}, ...children);
  if (next.innerHTML !== parent.innerHTML) parent.replaceChildren(...next.childNodes);
}

const number = (n) => Math.round(n).toLocaleString('en');

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at === 0 ? n : n.toFixed(1)} ${units[at]}`;
}

function age(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return `${s} s ago`;
  if (s < 7200) return `${Math.floor(s / 60)} min ago`;
  return s < 172800 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86400)} days ago`;
}

const partitions = (r) => (r.first === r.last ? `${r.first}` : `${r.first}–${r.last}`);

/** The topic that the address names: #/topics/NAME. */
function chosen() {
  const match = /^#\/topics\/(.+)$/.exec(location.hash);
  try {
    return match ? decodeURIComponent(match[1]) : null;
  } catch {
    return null;
  }
}

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MAX_MS), cache: 'no-store' });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body?.error?.message ?? `status ${answer.status}`);
  return body;
}

/** Records and bytes per second of each range and of the topic, from two looks at their counters. */
class Rates {
  constructor() { this.topic = null; this.before = null; this.last = null; }

  look(topic, ranges, at) {
    const now = { at, ranges: new Map(ranges.map((r) => [r.id, r])), all: Rates.sum(ranges) };
    const before = this.topic === topic ? this.before : null;
    const none = { of: new Map(), records: null, bytes: null };
    const seconds = before ? (now.at - before.at) / 1000 : 0;
    // Over a moment a rate is chance: the one before is shown on.
    if (before && seconds < SHORTEST_LOOK_S) return this.last ?? none;
    this.topic = topic;
    this.before = now;
    this.last = before ? Rates.between(before, now, seconds) : none;
    return this.last;
  }

  static between(before, now, seconds) {
    const per = (count) => Math.max(0, count) / seconds;
    const of = new Map();
    for (const [id, r] of now.ranges) {
      const then = before.ranges.get(id);
      if (then && r.state !== 'closed') of.set(id, per(r.appended_records - then.appended_records));
    }
    // The partitions' counters go on through splits and merges, so their sum does.
    return {
      of,
      records: per(now.all.records - before.all.records),
      bytes: per(now.all.bytes - before.all.bytes),
    };
  }

  static sum(ranges) {
    const open = ranges.filter((r) => r.state !== 'closed');
    const sum = (key) => open.reduce((n, r) => n + r[key], 0);
    return { records: sum('appended_records'), bytes: sum('appended_bytes') };
  }
}

const rates = new Rates();

function drawTopics(topics, current) {
  const row = (topic) => {
    const link = make('a', { href: `#/topics/${encodeURIComponent(topic.name)}`, data: { topic: topic.name } },
      make('b', {}, topic.name),
      make('span', {}, `${topic.ranges} ${topic.ranges === 1 ? 'range' : 'ranges'} · ${topic.partitions} p`));
    if (topic.name === current) link.setAttribute('aria-current', 'page');
    return make('li', {}, link);
  };
  fill($('topics'), ...topics.map(row));
  $('no-topics').hidden = topics.length > 0;
}

function drawFacts(topic, ranges, rate) {
  const active = ranges.filter((r) => r.state !== 'closed');
  const fact = (name, value) => make('div', {}, make('dt', {}, name), make('dd', {}, value));
  fill($('facts'),
    fact('Partitions', number(topic.partitions)),
    fact('Active ranges', number(active.length)),
    fact('Records/s', rate.records === null ? '–' : number(rate.records)),
    fact('Written/s', rate.bytes === null ? '–' : bytes(Math.round(rate.bytes))),
    fact('Stored', bytes(ranges.reduce((n, r) => n + r.bytes, 0))),
    fact('Drive', topic.drive));
}

function drawMap(topic, ranges, rate) {
  const active = ranges.filter((r) => r.state !== 'closed');
  const hottest = Math.max(0, ...active.map((r) => rate.of.get(r.id) ?? 0));
  const cell = (r) => {
    const own = rate.of.get(r.id);
    const load = hottest > 0 && own ? own / hottest : 0;
    // Of a range that was made just now the load is not known yet.
    const isNew = own === undefined && rate.records !== null;
    const took = own === undefined ? (isNew ? 'new' : '') : `${number(own)}/s`;
    return make('div', {
      cls: 'cell',
      title: `range ${r.id}, partitions ${partitions(r)}, ${r.state}${took && `, ${took}`}`,
      data: { range: r.id, first: r.first, last: r.last, state: r.state, load: isNew ? 'unknown' : 'known' },
      style: { '--parts': r.last - r.first + 1, '--load': load.toFixed(2) },
    }, make('b', {}, `${r.id}`), make('span', {}, partitions(r)), make('span', {}, took));
  };
  $('map').toggleAttribute('data-dense', active.length > CELLS_WITH_WORDS);
  fill($('map'), ...active.map(cell));
  const every = Math.max(1, Math.ceil(topic.partitions / 16));
  const ticks = [];
  for (let p = 0; p < topic.partitions; p += every) {
    ticks.push(make('span', { style: { left: `${(100 * (p + 0.5)) / topic.partitions}%` } }, `${p}`));
  }
  fill($('axis'), ...ticks);
  fill($('legend'), ...(hottest > 0
    ? ['cold', make('i'), `${number(hottest)} records/s`]
    : [rate.records === null ? '' : 'Nothing is written now.']));
}

/** Steps in which ranges were made: ids grow, and what came of one split or merge has the same parents. */
function steps(ranges) {
  const made = new Map();
  for (const r of ranges) {
    const key = r.parents.length ? r.parents.join() : 'first';
    made.set(key, Math.min(r.id, made.get(key) ?? r.id));
  }
  const order = [...new Set(made.values())].sort((a, b) => a - b);
  return (r) => order.indexOf(made.get(r.parents.length ? r.parents.join() : 'first'));
}

function drawLineage(topic, ranges) {
  const born = steps(ranges);
  const byId = new Map(ranges.map((r) => [r.id, r]));
  const last = Math.max(0, ...ranges.map(born));
  const from = Math.max(0, last + 1 - STEPS_DRAWN);
  const ended = (r) => {
    const children = r.children.map((id) => byId.get(id)).filter(Boolean);
    // A closed range whose children are forgotten ended before all that is known.
    return children.length ? born(children[0]) : r.state === 'closed' ? born(r) + 1 : last + 1;
  };
  const rows = ranges.map((r) => ({ r, top: Math.max(from, born(r)), bottom: ended(r) })).filter((k) => k.bottom > from);
  const kin = ({ r, top, bottom }) => make('div', {
    cls: 'kin',
    title: `range ${r.id}, partitions ${partitions(r)}, ${r.state}` +
      (r.parents.length ? `, from ${r.parents.join(' and ')}` : '') + (r.children.length ? `, became ${r.children.join(' and ')}` : ''),
    data: { range: r.id, state: r.state, parents: r.parents.join(), children: r.children.join() },
    style: {
      left: `${(100 * r.first) / topic.partitions}%`,
      width: `${(100 * (r.last - r.first + 1)) / topic.partitions}%`,
      top: `${(top - from) * STEP_PX}px`,
      height: `${(bottom - top) * STEP_PX}px`,
    },
  }, `${r.id}`);
  const widest = Math.max(...[...Array(last + 1 - from).keys()].map((at) =>
    rows.filter((k) => k.top <= at + from && at + from < k.bottom).length));
  $('lineage').toggleAttribute('data-dense', widest > CELLS_WITH_WORDS);
  fill($('lineage'), ...rows.map(kin));
  $('lineage').style.height = `${(last + 1 - from) * STEP_PX}px`;
  const older = ranges.length - rows.length;
  $('older').textContent = older > 0 ? `${older} older closed ${older === 1 ? 'range is' : 'ranges are'} not drawn.` : '';
}

function drawTable(ranges, rate) {
  const row = (r) => make('tr', { data: { range: r.id, state: r.state, bytes: r.bytes, segments: r.segments } },
    make('td', {}, `${r.id}`),
    make('td', {}, partitions(r)),
    make('td', { cls: `state-${r.state}` }, r.state),
    make('td', { cls: 'n' }, rate.of.has(r.id) ? number(rate.of.get(r.id)) : '–'),
    make('td', { cls: 'n' }, bytes(r.bytes)),
    make('td', { cls: 'n' }, `${r.segments}`),
    make('td', {}, r.parents.length ? r.parents.join(' + ') : '–'));
  const active = ranges.filter((r) => r.state !== 'closed');
  fill($('ranges').tBodies[0], ...active.map(row));
  const closed = ranges.filter((r) => r.state === 'closed');
  const held = closed.reduce((n, r) => n + r.bytes, 0);
  $('closed').textContent = closed.length
    ? `${closed.length} closed ${closed.length === 1 ? 'range holds' : 'ranges hold'} ${bytes(held)} that are still read.` : '';
}

function drawOperations(operations, name) {
  const own = operations.filter((o) => o.topic === name).reverse();
  const row = (o) => make('tr', { data: { operation: o.operation, state: o.state } },
    make('td', {}, o.kind + (o.created.length ? ` → ${o.created.join(' + ')}` : '') + (o.why ? ` (${o.why})` : '')),
    make('td', { cls: `state-${o.state}` }, o.state),
    make('td', { cls: 'n' }, o.paused_ms === null ? '–' : `${o.paused_ms.toFixed(1)} ms`),
    make('td', { cls: 'n' }, age(Date.now() - o.started_at)));
  fill($('operations').tBodies[0], ...own.slice(0, OPERATIONS_SHOWN).map(row));
  $('operations').hidden = own.length === 0;
  const more = own.length - OPERATIONS_SHOWN;
  $('no-operations').textContent = own.length === 0
    ? `None that is remembered. Split with: rangeway ranges split ${name} --range R`
    : more > 0 ? `and ${more} older ones` : '';
}

function say(state, text) {
  $('live').dataset.state = state;
  $('live').textContent = text;
}

function trouble(kind, text) {
  $('trouble').hidden = text === null;
  $('trouble').dataset.kind = kind;
  $('trouble').textContent = text ?? '';
}

let answeredAt = null;

// Looks may overlap when another topic is chosen: only the newest is drawn.
let looks = 0;

async function look() {
  looks += 1;
  const mine = looks;
  const [topics, cluster, operations] = await Promise.all([
    ask('/api/v1/topics'), ask('/api/v1/cluster'), ask('/api/v1/operations'),
  ]);
  const name = chosen() ?? topics[0]?.name ?? null;
  const topic = topics.find((t) => t.name === name);
  const asked = performance.now();
  const ranges = topic ? await ask(`/api/v1/topics/${encodeURIComponent(name)}/ranges`) : [];
  const answered = (asked + performance.now()) / 2;
  if (mine !== looks) return;
  drawTopics(topics, name);
  const own = cluster.nodes[0];
  $('node').textContent = own ? `node ${own.id} · Kafka ${own.address}` : '';
  $('topic').hidden = !topic;
  if (topic) {
    $('name').textContent = name;
    document.title = `${name} · Rangeway`;
    const rate = rates.look(name, ranges, answered);
    drawFacts(topic, ranges, rate);
    drawMap(topic, ranges, rate);
    drawLineage(topic, ranges);
    drawTable(ranges, rate);
    drawOperations(operations, name);
  } else {
    document.title = 'Rangeway';
  }
  answeredAt = Date.now();
  delete document.body.dataset.stale;
  if (cluster.blocked.length) {
    say('blocked', 'answers, some of it is blocked');
    trouble('blocked', cluster.blocked.join('\n'));
  } else {
    say('live', 'live');
    trouble('none', name !== null && !topic ? `There is no topic '${name}'.` : null);
  }
}

function failed(error) {
  if (answeredAt !== null) document.body.dataset.stale = '';
  const since = answeredAt === null ? '' : ` Shown is how it was ${age(Date.now() - answeredAt)}.`;
  if (error instanceof Refused) {
    say('blocked', 'not ready');
    trouble('blocked', `The node answers: ${error.message}.${since}`);
  } else {
    say('gone', 'no answer');
    trouble('gone', `The node at ${location.host} cannot be reached.${since} Asked again every second.`);
  }
}

async function run() {
  try {
    await look();
  } catch (error) {
    failed(error);
  }
  setTimeout(run, EVERY_MS);
}

addEventListener('hashchange', () => look().catch(failed));
run();
