// Lets the search find words as engineers type them: --on-recover, UNHEALTHY_TENSORFLOW, us-central2-b.
// The search itself takes a leading dash for "without", and parts of a word for words that may be missing.
(() => {
  const SETUP = 0, QUERY = 2; // messages of the theme to its search worker
  const post = Worker.prototype.postMessage;
  let separator = /\s+/;

  const terms = (word) => {
    const parts = word.split(separator).filter(Boolean);
    if (word.startsWith('"') || parts.length === 0) return word;
    if (parts.length > 1) return parts.map((part) => `+${part}`).join(" ") + "*";
    return `${parts[0]} *_${parts[0]}`; // at the start of a word, and inside of TPUCTL_ZONE
  };

  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type === SETUP) separator = new RegExp(message.data.config.separator);
    if (message?.type === QUERY) {
      const words = message.data.match(/"[^"]*"?|\S+/g) ?? [];
      message = { ...message, data: words.map(terms).join(" ") };
    }
    return post.call(this, message, ...rest);
  };
})();
