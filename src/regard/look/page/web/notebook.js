// The page in a notebook: its data comes from the widget.

export default {
  render({ model, el: root }) {
    root.classList.add("regard", "regard-in-notebook");
    return show(root, JSON.parse(model.get("about")), async (key) => {
      const view = model.get("blobs")[key];
      return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    });
  },
};
