// Lets the search work when the site is read from the disk: there browsers refuse web workers, so their script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = []; // messages from before the script has run; then null

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      const run = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src: new URL(address, document.baseURI), onload: resolve, onerror: reject });
          inside.document.body.append(script);
        });
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await run(address);
      };
      run(url).then(
        () => {
          const waiting = this.#waiting;
          this.#waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        },
        () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} cannot be loaded` })),
      );
    }

    postMessage(data) {
      const inside = this.#frame.contentWindow;
      if (this.#waiting) this.#waiting.push(data);
      else inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
