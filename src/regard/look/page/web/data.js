// The data: facts that are read at once, and compressed bytes that are unpacked on demand.

// The numbers of a head's summary, in the order in which the page stores them.
const STATISTICS = {
  first: { title: "first token", isShare: true, meaning: "share of the weight on the first token" },
  previous: { title: "previous token", isShare: true, meaning: "share on the token before the query" },
  itself: { title: "itself", isShare: true, meaning: "share on the query's own token" },
  separators: { title: "separators", isShare: true, meaning: "share on separators" },
  distance: { title: "distance", meaning: "mean distance in tokens from query to key" },
  entropy: { title: "entropy", meaning: "in nats: 0 is all weight on one token, higher is more even" },
};
const NUMBERS = Object.keys(STATISTICS);
const ROOT_LEVELS = 255; // weights of matrices are stored as their square roots, in this many levels

async function unzip(bytes) {
  if (!window.DecompressionStream) throw new Error("this browser is too old to unpack the data of this page");
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The data of a page, apart from how it is shown. `read(key)` returns the compressed bytes of "example.layer.kind".
class Data {
  constructor(about, read) {
    this.about = about;
    this.read = read;
    this.parts = new Map();
    let row = 0;
    this.layers = about.layers.map((layer, index) => {
      const summaries = about.summaries.slice(row, (row += layer.heads.length));
      const [queries, keys] = layer.of.map((at) => about.texts[at]);
      return { ...layer, index, summaries, label: label(layer.name, index), group: group(queries, keys, about.texts) };
    });
    this.examples = Math.max(...this.layers.map((layer) => layer.examples));
    this.numbers = NUMBERS.filter((_, i) => about.summaries.some((numbers) => numbers[i] !== null));
    this.hasWords = about.texts.some((text) => text.examples.some((each) => each.words.length < each.pieces.length));
  }

  // One kind of data of a layer for an example, unpacked once; null if there is none. Beyond the last example, the last.
  part(kind, example, layer) {
    if (!layer[kind]) return Promise.resolve(null);
    const key = `${Math.min(example, layer.examples - 1)}.${layer.index}.${kind}`;
    if (!this.parts.has(key)) {
      this.parts.set(
        key,
        this.read(key)
          .then(unzip)
          .then((bytes) => UNPACK[kind](bytes, layer)),
      );
    }
    return this.parts.get(key);
  }

  units(text, example, merged) {
    const { examples } = this.about.texts[text];
    return new Units(examples[Math.min(example, examples.length - 1)], merged);
  }
}

// The last number in the name of a layer, "model.layers.3.self_attn" is 3; without one, its index.
function label(name, index) {
  const numbers = name.match(/\d+(?=\.|$)/g);
  return numbers ? numbers[numbers.length - 1] : String(index);
}

function group(queries, keys, texts) {
  if (queries.side !== keys.side) return "Cross-attention";
  if (!texts.some((text) => text.side === "target")) return "Self-attention";
  return keys.side === "source" ? "Encoder" : "Decoder";
}

const UNPACK = {
  // Links by head and query, the heaviest first: query i of head h has those from start[h * queries + i] to the next.
  links(bytes, { heads, queries, first, links }) {
    const count = heads.length * queries;
    const start = new Uint32Array(count + 1);
    for (let i = 0; i < count; i++) start[i + 1] = start[i] + bytes[i];
    const total = start[count];
    const keys = new Uint32Array(total);
    const weights = new Float32Array(total);
    let at = count;
    for (let head = 0; head < heads.length; head++) {
      for (let rank = 0; rank < links.most; rank++) {
        for (let i = 0; i < queries; i++) {
          const row = head * queries + i;
          if (bytes[row] <= rank) continue;
          let code = 0;
          for (let n = 0; n < links.bytes; n++) code += bytes[at + n * total] * 256 ** n;
          keys[start[row] + rank] = keyOf(code, first + i, links.ways);
          weights[start[row] + rank] = (bytes[at + links.bytes * total] / links.levels) ** 2;
          at++;
        }
      }
    }
    return { start, keys, weights };
  },

  // Entropy of each head and query in nats, and the share of all weight that each key received.
  per_token(bytes, { heads, queries, keys, per_token: { levels, ...known } }) {
    let at = 0;
    const column = (size, of) => Float32Array.from(bytes.subarray(at, (at += size)), of);
    const most = Math.log(Math.max(2, keys));
    const entropy = known.entropy ? column(heads.length * queries, (byte) => (byte / levels) * most) : null;
    if (!known.received) return { entropy, received: null };
    const received = column(heads.length * keys, (byte) => (byte / levels) ** 2);
    for (let head = 0; head < heads.length; head++) {
      const own = received.subarray(head * keys, (head + 1) * keys);
      const sum = own.reduce((a, b) => a + b, 0) || 1;
      own.forEach((value, i) => (own[i] = value / sum));
    }
    return { entropy, received };
  },

  matrix(bytes) {
    return Float32Array.from(bytes, (byte) => (byte / ROOT_LEVELS) ** 2);
  },

  // Vectors of queries and keys, and the terms added to the scores.
  steps(bytes, { heads, queries, keys, steps }) {
    const numbers = new Float32Array(bytes.buffer);
    let at = 0;
    const table = (count, size) => Array.from({ length: count }, () => Array.from(numbers.subarray(at, (at += size))));
    const byHead = (count, size) => heads.map(() => table(count, size));
    return {
      query: byHead(queries, steps.features),
      key: byHead(keys, steps.features),
      added: steps.added ? byHead(queries, keys) : null,
    };
  },
};

// A key is counted from the first, or from the query's own position backwards, or forwards.
function keyOf(code, position, ways) {
  const [way, count] = [code % ways, Math.floor(code / ways)];
  return way === 0 ? count : way === 1 ? position - count : position + count;
}

// A text as units (tokens or words): the first token of each, and the unit of each token.
class Units {
  constructor({ pieces, special, padded, words }, merged) {
    this.pieces = pieces;
    this.starts = merged ? words : pieces.map((_, i) => i);
    this.count = this.starts.length;
    this.of = new Uint32Array(pieces.length);
    this.starts.forEach((first, unit) => this.of.fill(unit, first, this.end(unit)));
    this.special = new Set(special);
    this.padded = new Set(padded);
  }

  end(unit) {
    return unit + 1 < this.count ? this.starts[unit + 1] : this.pieces.length;
  }

  size(unit) {
    return this.end(unit) - this.starts[unit];
  }

  text(unit) {
    return this.pieces.slice(this.starts[unit], this.end(unit)).join("");
  }

  label(unit) {
    return visible(this.text(unit));
  }

  // Numbers by token as numbers by unit: summed, or averaged.
  merge(ofTokens, mean) {
    const merged = new Map();
    for (const [token, number] of ofTokens) {
      const unit = this.of[token];
      merged.set(unit, (merged.get(unit) || 0) + (mean ? number / this.size(unit) : number));
    }
    return merged;
  }
}

const heaviest = (weights) =>
  [...weights].filter(([, weight]) => weight > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]);

// The weights of a unit on the units of the keys, averaged over heads and over the unit's tokens.
function looksAt(links, layer, heads, unit, queries, keys) {
  const found = new Map();
  const first = Math.max(queries.starts[unit], layer.first);
  const part = 1 / (heads.length * queries.size(unit));
  for (const head of heads) {
    const row = head * layer.queries - layer.first;
    if (first >= queries.end(unit)) break;
    for (let at = links.start[row + first]; at < links.start[row + queries.end(unit)]; at++) {
      found.set(links.keys[at], (found.get(links.keys[at]) || 0) + links.weights[at] * part);
    }
  }
  return heaviest(keys.merge(found, false));
}

// The weights on a unit by the units of the queries, averaged over heads.
function lookedAtBy(links, layer, heads, unit, queries, keys) {
  const found = new Map();
  const [first, end] = [keys.starts[unit], keys.end(unit)];
  for (const head of heads) {
    for (let i = 0; i < layer.queries; i++) {
      const row = head * layer.queries + i;
      for (let at = links.start[row]; at < links.start[row + 1]; at++) {
        if (links.keys[at] < first || links.keys[at] >= end) continue;
        const token = layer.first + i;
        found.set(token, (found.get(token) || 0) + links.weights[at] / heads.length);
      }
    }
  }
  return heaviest(queries.merge(found, true));
}

// The mean matrix of heads of layers over units, in at most `most` rows and columns: of the pairs that share a cell
// the heaviest counts. `sources` are {layer, heads, matrix, links}.
function cells(sources, queries, keys, most) {
  const rows = Math.min(most, queries.count);
  const columns = Math.min(most, keys.count);
  const values = new Float32Array(rows * columns);
  const sums = new Float32Array(keys.count);
  for (let unit = 0; unit < queries.count; unit++) {
    sums.fill(0);
    for (const source of sources) {
      const part = 1 / (sources.length * source.heads.length * queries.size(unit));
      for (const head of source.heads)
        addRow(sums, source, head, queries.starts[unit], queries.end(unit), keys.of, part);
    }
    const row = Math.floor((unit * rows) / queries.count) * columns;
    for (let key = 0; key < keys.count; key++) {
      const at = row + Math.floor((key * columns) / keys.count);
      if (sums[key] > values[at]) values[at] = sums[key];
    }
  }
  return { rows, columns, values };
}

function addRow(sums, { layer, matrix, links }, head, first, end, unitOf, part) {
  for (let i = Math.max(0, first - layer.first); i < end - layer.first; i++) {
    const row = head * layer.queries + i;
    if (matrix) {
      for (let key = 0; key < layer.keys; key++) sums[unitOf[key]] += matrix[row * layer.keys + key] * part;
    } else if (links) {
      for (let at = links.start[row]; at < links.start[row + 1]; at++)
        sums[unitOf[links.keys[at]]] += links.weights[at] * part;
    }
  }
}
