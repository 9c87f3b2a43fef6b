// The search runs in a Web Worker, which browsers forbid on file:// pages. There, an invisible frame takes its place.
// The same idea as https://github.com/squidfunk/iframe-worker, which the theme would load from another server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      addEventListener("message", ({ source, data }) => {
        if (source === inside) this.receive(data);
      });
      inside.document.open();
      inside.document.write(`<body><script>
        postMessage = (message) => parent.postMessage(message, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = Object.assign(document.createElement("script"), { src: url, onload: done });
          document.body.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body>`);
      inside.document.close();
      this.ready = new Promise((done) => (inside.onload = done));
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
