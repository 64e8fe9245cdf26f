// A text to pick tokens from: those that the picked one attends to are shaded, those that attend to it underlined; both
// are listed too.

const LISTED = 8;
const LIGHT_LINK = 0.1; // the lowest end of the scale of shades, so that light links are never dark
const BLOCK = 400; // tokens after which the next line end begins a new block, drawn only when it is near
const LONGEST_BLOCK = 1600;

// One text: its units as spans, one of them active, and a strip with the marks of a long text.
class Passage {
  constructor(prefix, name, pick) {
    this.prefix = prefix;
    this.pick = pick;
    this.spans = [];
    this.painted = [];
    this.active = 0;
    this.list = el("div", {
      class: "passage",
      role: "listbox",
      tabindex: "0",
      "aria-label": name,
      dir: "auto",
      onclick: (event) => this.click(event),
      onkeydown: (event) => this.key(event),
    });
    this.scroll = el("div", { class: "scroll" }, this.list);
    this.strip = el("canvas", { class: "strip", "aria-hidden": "true", onclick: (event) => this.jump(event) });
    this.heading = el("h3", {}, name);
    this.element = el("section", {}, this.heading, el("div", { class: "beside" }, this.scroll, this.strip));
  }

  write(units) {
    if (this.units === units) return;
    this.units = units;
    this.painted = [];
    this.active = Math.min(this.active, Math.max(0, units.count - 1));
    this.spans = Array.from({ length: units.count }, (_, unit) => this.span(unit));
    const blocks = [[]];
    this.spans.forEach((span, unit) => {
      const text = units.text(unit);
      const body = span.textContent === "↵" ? "" : text.trimStart();
      const lead = body ? text.slice(0, text.length - body.length) : "";
      if (lead && !this.spans[unit - 1]?.textContent.endsWith("↵")) blocks[blocks.length - 1].push(lead);
      blocks[blocks.length - 1].push(span);
      const length = blocks[blocks.length - 1].length;
      const ends = text.includes("\n");
      if ((ends && length >= BLOCK) || length >= LONGEST_BLOCK) blocks.push([]);
      else if (span.textContent === "↵") blocks[blocks.length - 1].push(text);
    });
    this.list.replaceChildren(...blocks.map((parts) => el("div", { class: "block", dir: "auto" }, ...parts)));
  }

  span(unit) {
    const { units } = this;
    const text = units.text(unit);
    const first = units.starts[unit];
    const kinds = ["unit", units.special.has(first) ? "special" : "", units.padded.has(first) ? "padded" : ""];
    const label = text.trim() === "" ? (text.includes("\n") ? "↵" : visible(text)) : named(text.trimStart());
    const span = el("span", { class: kinds.join(" ").trim(), role: "option", id: `${this.prefix}-${unit}` }, label);
    if (label === "↵" || label === "◦") span.classList.add("special");
    span.unit = unit;
    return span;
  }

  // Paint units: {shade} as a share of the scale, {line} for links to the picked unit, which gets a frame.
  paint(marks, picked, dark) {
    for (const span of this.painted) span.removeAttribute("style");
    this.list.querySelectorAll("[aria-selected=true]").forEach((span) => span.removeAttribute("aria-selected"));
    this.painted = [];
    for (const [unit, mark] of marks) {
      const span = this.spans[unit];
      if (!span) continue;
      if (mark.shade > 0) {
        const colour = shade(mark.shade, dark);
        span.style.backgroundColor = css(colour);
        span.style.color = inkOn(colour);
      }
      if (mark.line > 0)
        span.style.boxShadow = `inset 0 -3px 0 rgb(var(--warm) / ${Math.max(0.15, mark.line).toFixed(2)})`;
      this.painted.push(span);
    }
    if (picked !== null) {
      this.spans[picked].setAttribute("aria-selected", "true");
      this.move(picked);
    }
    this.marks = marks;
    this.dark = dark;
    this.draw();
  }

  draw() {
    const { strip, scroll } = this;
    const long = scroll.scrollHeight > scroll.clientHeight + 4;
    strip.hidden = !long;
    if (!long) return;
    strip.width = 12;
    strip.height = scroll.clientHeight;
    const context = strip.getContext("2d");
    const height = (span) => ((span.offsetTop - this.list.offsetTop) / scroll.scrollHeight) * strip.height;
    const warm = `rgb(${getComputedStyle(strip).getPropertyValue("--warm")})`;
    for (const [unit, mark] of [...this.marks].sort((a, b) => (a[1].shade || 0) - (b[1].shade || 0))) {
      const y = height(this.spans[unit]);
      if (mark.shade > 0) {
        context.fillStyle = css(shade(0.25 + 0.75 * mark.shade, this.dark));
        context.fillRect(0, y, 6, 3);
      }
      if (mark.line > 0) {
        context.globalAlpha = Math.max(0.3, mark.line);
        context.fillStyle = warm;
        context.fillRect(6, y, 6, 3);
        context.globalAlpha = 1;
      }
    }
  }

  move(unit) {
    this.spans[this.active]?.classList.remove("active");
    this.active = Math.min(this.units.count - 1, Math.max(0, unit));
    const span = this.spans[this.active];
    span.classList.add("active");
    this.list.setAttribute("aria-activedescendant", span.id);
  }

  show(unit) {
    const [box, view] = [this.spans[unit].getBoundingClientRect(), this.scroll.getBoundingClientRect()];
    if (box.top < view.top || box.bottom > view.bottom) {
      this.scroll.scrollTop += box.top - view.top - view.height / 3;
    }
  }

  click(event) {
    const span = event.target.closest(".unit");
    if (span) this.pick(span.unit);
  }

  jump(event) {
    this.scroll.scrollTop =
      (event.offsetY / this.strip.clientHeight) * this.scroll.scrollHeight - this.scroll.clientHeight / 2;
  }

  // Arrows pick the next token, or the one above or below; Enter picks the active one; Escape unpicks.
  key(event) {
    const { active } = this;
    const forward = getComputedStyle(this.spans[active].parentElement).direction === "rtl" ? -1 : 1;
    const moves = {
      ArrowRight: () => active + forward,
      ArrowLeft: () => active - forward,
      ArrowDown: () => this.beyond(1),
      ArrowUp: () => this.beyond(-1),
      Home: () => 0,
      End: () => this.units.count - 1,
      Enter: () => active,
      " ": () => active,
      Escape: () => null,
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const to = moves[event.key]();
    const unit = to === null ? null : Math.min(this.units.count - 1, Math.max(0, to));
    this.pick(unit);
    if (unit !== null) this.show(unit);
  }

  // The nearest unit in the next or the previous line.
  beyond(step) {
    const here = this.spans[this.active].getBoundingClientRect();
    let best = this.active;
    let line = null;
    for (let unit = this.active + step; unit >= 0 && unit < this.units.count; unit += step) {
      const box = this.spans[unit].getBoundingClientRect();
      if (Math.abs(box.top - here.top) < box.height / 2) continue;
      if (line === null) line = box.top;
      if (Math.abs(box.top - line) > box.height / 2) break;
      const away = (unit) => Math.abs(this.spans[unit].getBoundingClientRect().left - here.left);
      if (best === this.active || away(unit) < away(best)) best = unit;
    }
    return best;
  }
}

class Text {
  constructor(data, state, set, prefix) {
    Object.assign(this, { data, state, set });
    this.queries = new Passage(`${prefix}-q`, "Text", (unit) =>
      set({ picked: unit === null ? null : { side: "query", unit } }),
    );
    this.keys = new Passage(`${prefix}-k`, "Source", (unit) =>
      set({ picked: unit === null ? null : { side: "key", unit } }),
    );
    this.out = el("div", { class: "list" });
    this.back = el("div", { class: "list" });
    this.about = el("p", { class: "about" });
    this.live = el("p", { class: "hidden", role: "status", "aria-live": "polite" });
    this.element = el(
      "div",
      { class: "text" },
      el("div", { class: "passages" }, this.keys.element, this.queries.element),
      el("aside", { "aria-label": "Links of the picked token" }, this.about, this.out, this.back),
      this.live,
    );
  }

  async update() {
    const { data, state } = this;
    const [layer, example] = [data.layers[state.layer], state.example];
    const [links, perToken] = await Promise.all(["links", "per_token"].map((kind) => data.part(kind, example, layer)));
    if (layer !== data.layers[state.layer] || example !== state.example) return; // chosen in the meantime
    const isCross = layer.of[0] !== layer.of[1];
    const [queries, keys] = state.units(layer);
    this.keys.element.hidden = this.queries.heading.hidden = !isCross;
    this.queries.heading.textContent = "Answer";
    this.queries.list.setAttribute("aria-label", isCross ? "Tokens of the answer" : "Tokens of the text");
    this.queries.write(queries);
    if (isCross) this.keys.write(keys);
    const heads = state.head === null ? [...layer.heads.keys()] : [state.head];
    const picked = state.picked && { ...state.picked, units: state.picked.side === "query" ? queries : keys };
    this.render(
      { layer, heads, queries, keys, isCross, links, perToken },
      picked?.unit < picked?.units.count ? picked : null,
    );
  }

  // In one text the picked token has links both ways; of two texts it belongs to one.
  render(shown, picked) {
    const { layer, heads, queries, keys, isCross, links } = shown;
    const [looks, isLookedAt] = ["query", "key"].map((side) => picked !== null && (!isCross || picked.side === side));
    const out = looks && links ? looksAt(links, layer, heads, picked.unit, queries, keys) : [];
    const back = isLookedAt && links ? lookedAtBy(links, layer, heads, picked.unit, queries, keys) : [];
    const received = this.received(shown);
    const marks = this.marks(isCross, out, back, picked ? null : received);
    this.queries.paint(marks.query, looks ? picked.unit : null, this.state.dark);
    if (isCross) this.keys.paint(marks.key, isLookedAt ? picked.unit : null, this.state.dark);
    this.describe(shown, picked, received);
    this.fill(this.out, "Attends to", looks ? out : null, "key", keys, isCross);
    this.fill(this.back, "Attended to by", isLookedAt ? back : null, "query", queries, isCross);
    this.live.textContent = picked ? this.words(picked, looks && out, isLookedAt && back, queries, keys) : "";
  }

  // The marks of the units of both texts, or of the one that is both.
  marks(isCross, out, back, received) {
    const query = new Map();
    const key = isCross ? new Map() : query;
    const mark = (marks, unit, more) => marks.set(unit, { ...marks.get(unit), ...more });
    const end = Math.max(LIGHT_LINK, scaleEnd(out.length ? out[0][1] : 0));
    for (const [unit, weight] of out) mark(key, unit, { shade: weight / end });
    for (const [unit, weight] of back) mark(query, unit, { line: Math.sqrt(weight / back[0][1]) });
    const most = received ? Math.max(...received.values()) : 0;
    for (const [unit, share] of received || []) mark(key, unit, { shade: 0.4 * Math.sqrt(share / most) });
    return { query, key };
  }

  // The share of the total weight that each unit receives, null if it was not recorded.
  received({ perToken, layer, heads, keys }) {
    if (!perToken?.received) return null;
    const ofTokens = new Map();
    for (const head of heads) {
      for (let key = 0; key < layer.keys; key++) {
        ofTokens.set(key, (ofTokens.get(key) || 0) + perToken.received[head * layer.keys + key] / heads.length);
      }
    }
    return keys.merge(ofTokens, false);
  }

  describe({ layer, heads, perToken, links, isCross }, picked, received) {
    if (!picked) {
      const hint = received ? "Shaded by the weight that each token receives. " : "";
      this.about.replaceChildren(`${hint}Pick a token to see which tokens it attends to and which attend to it.`);
      return;
    }
    const { units, unit, side } = picked;
    const facts = [];
    if (side === "query" && perToken?.entropy) {
      const own = Array.from({ length: units.size(unit) }, (_, i) => units.starts[unit] + i - layer.first);
      const found = heads.flatMap((head) => own.map((i) => (i < 0 ? NaN : perToken.entropy[head * layer.queries + i])));
      const known = found.filter((value) => !Number.isNaN(value));
      const entropy = known.reduce((a, b) => a + b, 0) / known.length;
      const tokens = number(Math.exp(entropy));
      if (known.length) facts.push(`Entropy ${number(entropy)} nats, that of equal weights on ${tokens} tokens.`);
    }
    if (received && (side === "key" || !isCross))
      facts.push(`Receives ${percent(received.get(unit) || 0)} of the total weight.`);
    if (!links) facts.push("Links were not recorded: watch with Observe(top=8).");
    const name = el("bdi", { class: "token" }, units.label(unit));
    this.about.replaceChildren(name, el("span", { class: "faint" }, ` ${unit}`), el("br"), facts.join(" "));
  }

  fill(list, title, found, side, units, isCross) {
    list.hidden = found === null;
    if (found === null) return;
    const kind = side === "query" ? "warm" : "";
    const strongest = Math.max(0.5, found.length ? found[0][1] : 0);
    const passage = isCross && side === "key" ? this.keys : this.queries;
    const rows = found.slice(0, LISTED).map(([unit, weight]) => {
      const go = () => {
        this.set({ picked: { side: isCross ? side : "query", unit } });
        passage.show(unit);
      };
      const index = el("span", { class: "faint index" }, String(unit));
      const parts = [el("bdi", {}, units.label(unit)), index, bar(weight / strongest, kind)];
      const button = el(
        "button",
        { type: "button", onclick: go },
        ...parts,
        el("span", { class: "weight" }, percent(weight)),
      );
      return el("li", {}, button);
    });
    const lighter = found.length - LISTED;
    const rest = found.length ? `and ${grouped(lighter)} lighter` : "no link is heavy enough to be included";
    const more = lighter > 0 || !found.length ? [el("p", { class: "faint" }, rest)] : [];
    list.replaceChildren(el("h3", { class: kind }, title), el("ol", {}, ...rows), ...more);
  }

  // The picked token in words, for screen readers.
  words({ units, unit }, out, back, queries, keys) {
    const listed = (found, of) => {
      const some = found.slice(0, 3).map(([other, weight]) => `${of.label(other)} ${other} ${percent(weight)}`);
      return some.join(", ") || "no recorded link";
    };
    const parts = [`${units.label(unit)}, token ${unit}`];
    if (out) parts.push(`attends to ${listed(out, keys)}`);
    if (back) parts.push(`attended to by ${listed(back, queries)}`);
    return `${parts.join("; ")}.`;
  }
}

VIEWS.push({
  name: "text",
  title: "Text",
  fits: () => true,
  make: (data, state, set, prefix) => new Text(data, state, set, prefix),
});
