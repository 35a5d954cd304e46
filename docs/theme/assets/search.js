// Lets the search find words as engineers type them: --on-recover, UNHEALTHY_TENSORFLOW, us-central2-b.
// The search itself takes a leading dash for "without", and each part of such a word for a word that may be missing.
// Here all parts are required, and what has the word as it was typed comes first.
window.Worker = class SearchWorker extends Worker {
  // The messages between the theme and its search worker.
  static SETUP = 0;
  static QUERY = 2;
  static RESULT = 3;

  #texts = new Map(); // by location of a section
  #separator = /\s+/;
  #compounds = [];

  constructor(...args) {
    super(...args);
    this.addEventListener("message", ({ data }) => {
      if (data.type === SearchWorker.RESULT && this.#compounds.length > 0) this.#sort(data.data.items);
    });
  }

  postMessage(message, ...rest) {
    if (message.type === SearchWorker.SETUP) this.#read(message.data);
    const sent = message.type === SearchWorker.QUERY ? { ...message, data: this.#translate(message.data) } : message;
    super.postMessage(sent, ...rest);
  }

  #read({ config, docs }) {
    this.#separator = new RegExp(config.separator);
    for (const { location, title, text } of docs) {
      this.#texts.set(location, `${title} ${text}`.replace(/<[^>]*>/g, "").toLowerCase());
    }
  }

  #translate(query) {
    const words = query.match(/"[^"]*"?|\S+/g) ?? [];
    this.#compounds = words.filter((word) => this.#parts(word).length > 1).map((word) => word.toLowerCase());
    return words.map((word) => this.#required(word)).join(" ");
  }

  #parts(word) {
    return word.startsWith('"') ? [word] : word.split(this.#separator).filter(Boolean);
  }

  #required(word) {
    const parts = this.#parts(word);
    return parts.length > 1 ? parts.map((part) => `+${part}`).join(" ") + "*" : parts.join("");
  }

  #sort(pages) {
    // The page of settings describes the variables; other pages mention them.
    const weight = (word, location) => (word.startsWith("tpuctl_") && location.startsWith("reference/settings/") ? 2 : 1);
    const matches = ({ location }) =>
      this.#compounds
        .filter((word) => this.#texts.get(location)?.includes(word))
        .reduce((sum, word) => sum + weight(word, location), 0);
    for (const page of pages) page.sort((a, b) => matches(b) - matches(a));
    pages.sort((a, b) => Math.max(...b.map(matches)) - Math.max(...a.map(matches)));
  }
};
