// Answers by the program that serves this page.
async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The program behind this page does not answer. Is it still running?");
  }
  const found = await response.json();
  if (!response.ok) throw new Error(found.error);
  return found;
}

export const engine = {
  about: () => request("api/about"),
  ask: (ability, row, signal) => request("api/" + ability, {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify(row),
    signal,
  }),
};
