// Small parts of a page: elements, colours, and the formatting of numbers and labels.

// The views of the page, each registered by its own file: `fits(data)` returns whether the page has it, `make(data, state,
// set, prefix)` returns an object with its `element` and an async `update()`.
const VIEWS = [];

// The colours of the pictures, in which lightness decreases evenly.
const COLOURS = ["#f1f5f8", "#b6e0ea", "#7bc7e3", "#59aad3", "#3d8bc3", "#2c6daf", "#2c4f90", "#263470", "#1d1a50"];
const STEPS = 256;
const scaleOf = (stops) => Array.from({ length: STEPS }, (_, i) => between(stops, i / (STEPS - 1)));
// On a dark background in reverse order: weight 0 is closest to the background.
const [LIGHT, DARK] = [scaleOf(COLOURS), scaleOf(["#1a1f27", ...COLOURS.slice(0, -1).reverse()])];

function between(stops, share) {
  const at = share * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const [from, to] = [stops[low], stops[low + 1]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return from.map((value, i) => Math.round(value + (to[i] - value) * (at - low)));
}

// The colour of a share of the scale.
function shade(share, dark) {
  return (dark ? DARK : LIGHT)[Math.round(Math.min(1, Math.max(0, share || 0)) * (STEPS - 1))];
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
// Black or white, whichever has more contrast, by luminance as WCAG 2 defines it.
function inkOn(colour) {
  const [red, green, blue] = colour.map((value) =>
    value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 ? "#ffffff" : "#000000";
}

// The weight at the end of the scale: 1, or the largest weight if that is below one half.
const scaleEnd = (largest) => (largest >= 0.5 || !(largest > 0) ? 1 : largest);

// An element; text is never parsed as HTML. Names that begin with "on" are listeners, the others attributes.
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SIGNS = { "\n": "↵", "\t": "⇥", "\r": "↵", "\u00a0": "⍽" };
// Characters that are invisible, or that change the direction of the text, are shown as code points.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const named = (text) =>
  text.replace(HIDDEN, (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);

// A token as a label on one line.
function visible(text) {
  if (text === "") return "◦";
  const body = text.trim() === "" ? text.replace(/ /g, "␣") : text.replace(/^ +/, "");
  return named(body.replace(/[\n\t\r\u00a0]/g, (char) => SIGNS[char]));
}

function percent(weight) {
  const value = 100 * weight;
  if (value >= 9.95 || value === 0) return `${value.toFixed(0)} %`;
  return value < 0.05 ? "< 0.1 %" : `${value.toFixed(1)} %`;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}

const grouped = (count) => count.toLocaleString("en");
const counted = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;

// A few options side by side.
let choices = 0;
function segments(name, options, value, choose) {
  const group = `regard-choice-${choices++}`;
  const inputs = options.map(([key, text]) => {
    const input = el("input", { type: "radio", name: group, value: key, onchange: () => choose(key) });
    input.checked = key === value;
    return el("label", {}, input, el("span", {}, text));
  });
  return el("fieldset", { class: "segments" }, el("legend", {}, name), ...inputs);
}

function menu(name, options, value, choose) {
  const select = el("select", { onchange: (event) => choose(event.target.value) });
  for (const [key, text] of options) select.append(el("option", { value: key }, text));
  select.value = value;
  return el("label", { class: "menu" }, el("span", {}, name), select);
}

// A bar filled to a share of its width.
const bar = (share, kind = "") =>
  el("span", { class: `bar ${kind}`, "aria-hidden": "true", style: `--share:${Math.min(1, Math.max(0, share || 0))}` });

const FORWARD = { ArrowRight: 1, ArrowLeft: -1 };
