// Browsers refuse workers to pages opened from disk: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.onload = () => resolve(inner);
        script.onerror = reject;
        script.src = url;
        inner.document.body.append(script);
      });
    }
    set onmessage(listener) {
      this.addEventListener("message", listener);
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
