// A text to pick from: where a token looks, shaded, and who looks at it, underlined; both as lists, too.

const LISTED = 8;
const BLOCK = 400; // tokens after which the next end of a line begins a block of its own, drawn only when it is near
const LONGEST_BLOCK = 1600;

// One text: its units as spans, one of them active, and a strip that shows where in a long text things are.
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

  // Paint units: {shade} as a share of the scale, {line} for who looks at it; the picked one gets a frame.
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

  // Arrows pick the next token, or the one above or below; Enter picks the active one; Escape lets go.
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

  // The unit in the next or the last line that stands nearest.
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
    const layer = data.layers[state.layer];
    const [links, figures] = await Promise.all(
      ["links", "figures"].map((kind) => data.part(kind, state.example, layer)),
    );
    if (layer !== data.layers[state.layer]) return;
    const cross = layer.of[0] !== layer.of[1];
    this.keys.element.hidden = !cross;
    this.queries.heading.textContent = cross ? (layer.group === "Cross-attention" ? "Answer" : "Queries") : "Text";
    this.queries.heading.hidden = !cross;
    this.queries.list.setAttribute("aria-label", cross ? "Tokens of the answer" : "Tokens of the text");
    const [queries, keys] = state.units(layer);
    this.queries.write(queries);
    if (cross) this.keys.write(keys);
    const heads = state.head === null ? [...layer.heads.keys()] : [state.head];
    const picked =
      state.picked && state.picked.unit < (state.picked.side === "query" ? queries : keys).count ? state.picked : null;
    this.told(layer, heads, picked, queries, keys, cross, links, figures);
  }

  told(layer, heads, picked, queries, keys, cross, links, figures) {
    const asks = picked && (!cross || picked.side === "query");
    const asked = picked && (!cross || picked.side === "key");
    const out = asks && links ? looksAt(links, layer, heads, picked.unit, queries, keys) : [];
    const back = asked && links ? lookedAtBy(links, layer, heads, picked.unit, queries, keys) : [];
    const marks = { query: new Map(), key: cross ? new Map() : null };
    const mark = (side, unit) => {
      const of = (side === "key" && marks.key) || marks.query;
      if (!of.has(unit)) of.set(unit, {});
      return of.get(unit);
    };
    const received = figures?.received ? this.received(figures.received, layer, heads, keys) : null;
    const end = scaleEnd(out.length ? out[0][1] : 0);
    for (const [unit, weight] of out) mark("key", unit).shade = weight / end;
    const strongest = back.length ? back[0][1] : 1;
    for (const [unit, weight] of back) mark("query", unit).line = Math.sqrt(weight / strongest);
    if (!picked && received) {
      const most = Math.max(...received.values());
      for (const [unit, share] of received) mark("key", unit).shade = 0.4 * Math.sqrt(share / most);
    }
    this.queries.paint(marks.query, asks || (picked && !cross) ? picked.unit : null, this.state.dark);
    if (cross) this.keys.paint(marks.key, asked ? picked.unit : null, this.state.dark);
    this.describe(layer, heads, picked, queries, keys, links, figures, received);
    this.fill(this.out, "Looks at", asks ? out : null, "key", keys, cross, "");
    this.fill(this.back, "Is looked at by", asked ? back : null, "query", queries, cross, "warm");
    this.say(
      picked,
      picked && (picked.side === "query" || !cross ? queries : keys),
      asks,
      asked,
      out,
      back,
      queries,
      keys,
    );
  }

  received(received, layer, heads, keys) {
    const ofTokens = new Map();
    for (const head of heads) {
      for (let key = 0; key < layer.keys; key++) {
        ofTokens.set(key, (ofTokens.get(key) || 0) + received[head * layer.keys + key] / heads.length);
      }
    }
    return keys.merge(ofTokens, false);
  }

  describe(layer, heads, picked, queries, keys, links, figures, received) {
    if (!picked) {
      const hint = received ? "Shaded by the weight that each token receives. " : "";
      this.about.replaceChildren(`${hint}Pick a token to see where it looks and who looks at it.`);
      return;
    }
    const units = picked.side === "query" ? queries : keys;
    const facts = [];
    const place = (token) => token - layer.first;
    const own = Array.from({ length: units.size(picked.unit) }, (_, i) => units.starts[picked.unit] + i);
    if (picked.side === "query" && figures?.entropy) {
      const told = heads.flatMap((head) =>
        own.filter((t) => place(t) >= 0).map((t) => figures.entropy[head * layer.queries + place(t)]),
      );
      const entropy = told.reduce((a, b) => a + b, 0) / Math.max(1, told.length);
      if (told.length) facts.push(`Entropy ${number(entropy)} nats, as even over ${number(Math.exp(entropy))} tokens.`);
    }
    if (received && (picked.side === "key" || layer.of[0] === layer.of[1])) {
      facts.push(`Receives ${percent(received.get(picked.unit) || 0)} of all weight.`);
    }
    if (!links) facts.push("Links were not asked for: watch with Observe(top=8).");
    this.about.replaceChildren(
      el("bdi", { class: "token" }, units.label(picked.unit)),
      el("span", { class: "faint" }, ` ${picked.unit}`),
      el("br"),
      facts.join(" "),
    );
  }

  fill(list, title, found, side, units, cross, kind) {
    list.hidden = found === null;
    if (found === null) return;
    const strongest = Math.max(0.5, found.length ? found[0][1] : 0);
    const rows = found.slice(0, LISTED).map(([unit, weight]) =>
      el(
        "li",
        {},
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              this.set({ picked: { side: cross ? side : "query", unit } });
              (cross && side === "key" ? this.keys : this.queries).show(unit);
            },
            title: `token ${unit}`,
          },
          el("bdi", {}, units.label(unit)),
          el("span", { class: "faint index" }, String(unit)),
          bar(weight / strongest, kind),
          el("span", { class: "weight" }, percent(weight)),
        ),
      ),
    );
    const more =
      found.length > LISTED ? el("p", { class: "faint" }, `and ${grouped(found.length - LISTED)} lighter`) : null;
    const none = found.length ? null : el("p", { class: "faint" }, "no link is heavy enough to be kept");
    list.replaceChildren(...[el("h3", { class: kind }, title), el("ol", {}, ...rows), more, none].filter(Boolean));
  }

  say(picked, units, asks, asked, out, back, queries, keys) {
    if (!picked) return this.live.replaceChildren();
    const told = (found, of) =>
      found
        .slice(0, 3)
        .map(([unit, weight]) => `${of.label(unit)} ${unit} ${percent(weight)}`)
        .join(", ") || "nothing kept";
    const parts = [`${units.label(picked.unit)}, token ${picked.unit}`];
    if (asks) parts.push(`looks at ${told(out, keys)}`);
    if (asked) parts.push(`is looked at by ${told(back, queries)}`);
    this.live.replaceChildren(`${parts.join("; ")}.`);
  }
}
