// The boxes for files: what browsers may choose, and how files of other kinds arrive.
//
// Gradio gives one list of endings both to the browser and to a check of its own, whose message
// says nothing about exports. So its list is empty, the browser's is set here, and the server
// refuses files. Browsers of telephones convert photographs to a kind in their list: it must not
// name HEIC or DNG, or they would be sent as they are.
(() => {
  const refused = new Set({{ refused | tojson }});
  const START = 64; // bytes, from which the server sees the kind of a file

  const boxOf = (event) => event.target.closest?.(".drop");
  const isHeavy = (file) =>
    file.size > START && refused.has(file.name.slice(file.name.lastIndexOf(".")).toLowerCase());

  // Raw files are often larger than the limit, and would be refused for that.
  const withoutContents = (files) => {
    const kept = new DataTransfer();
    for (const file of files) {
      const start = () => new File([file.slice(0, START)], file.name, { type: file.type });
      kept.items.add(isHeavy(file) ? start() : file);
    }
    return kept;
  };

  // Before Gradio's own listeners. It makes new inputs at times, so the list is set at each click.
  document.addEventListener("click", (event) => {
    const box = boxOf(event), input = box?.querySelector("input[type=file]");
    if (!input) return;
    const kinds = [...box.classList].filter((name) => name.startsWith("takes-"));
    input.accept = kinds.map((name) => "." + name.slice("takes-".length)).join(", ");
  }, true);

  document.addEventListener("change", (event) => {
    const input = event.target;
    if (boxOf(event) && [...(input.files ?? [])].some(isHeavy))
      input.files = withoutContents(input.files).files;
  }, true);

  document.addEventListener("drop", (event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!boxOf(event) || !files.some(isHeavy)) return;
    event.preventDefault();
    event.stopPropagation();
    event.target.dispatchEvent(new DragEvent("drop", {
      bubbles: true, cancelable: true, dataTransfer: withoutContents(files),
    }));
  }, true);
})();
