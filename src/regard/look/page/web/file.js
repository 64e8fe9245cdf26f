// The page as a file: its data stands in scripts that are not run.

const root = document.getElementById("regard");
const about = JSON.parse(document.getElementById("regard-about").textContent);
show(root, about, async (key) => {
  const text = document.getElementById(`regard-${key}`).textContent;
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
});
