// Files that a link holds: packed, behind the #, where no server sees them.

/** Characters of a packed file up to which it is part of the link, as the server states them. */
const LONGEST = Number(document.documentElement.dataset.longestLink);
/** What a file is called that a page takes and a link may hold. */
export const IS_FILE = /^[\w-]+\.(?:json|csv)$/;
const FILE = /^#([\w-]+\.(?:json|csv))=([\w-]+)$/;

async function through(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

async function packed(text) {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  let characters = "";
  for (const byte of bytes) characters += String.fromCharCode(byte);
  return btoa(characters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(code) {
  const bytes = Uint8Array.from(atob(code.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  return new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")));
}

/** The file that the address holds, by its name; none where it holds none, or one that cannot be read. */
export async function attachedFiles() {
  const found = FILE.exec(location.hash);
  if (!found) return {};
  try {
    return { [found[1]]: await unpacked(found[2]) };
  } catch {
    return {};
  }
}

/** Put a file into the address, in place of the one there; whether it is small enough. */
export async function attach(name, text) {
  const code = await packed(text);
  const isHeld = code.length <= LONGEST;
  history.replaceState(null, "", `${location.pathname}${location.search}${isHeld ? `#${name}=${code}` : ""}`);
  return isHeld;
}

/** Take the file out of the address. */
export function detach() {
  if (FILE.test(location.hash)) history.replaceState(null, "", location.pathname + location.search);
}

/** What the page says of a file in use. */
export const attachedNote = (name) => (location.hash.startsWith(`#${name}=`) ? "In use; the link holds it." : "In use, but too large for the link: who opens the link has to choose the file again.");
/** What it says where the link was made with a file that it does not hold. */
export const missingNote = (name) => `The link was made with a ${name} that it does not hold: choose the file again.`;
