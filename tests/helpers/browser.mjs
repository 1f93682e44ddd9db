// Opens the page as a person would: node browser.mjs PUPPETEER CHROMIUM URL STATE SCREENSHOT FILE... Writes the trained
// state; each further file is given to the input whose name it begins with (rows-text.csv to #rows).
import { writeFile } from "node:fs/promises";

const [puppeteer, chromium, url, state, screenshot, ...files] = process.argv.slice(2);
const { launch } = await import(puppeteer);
const software = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan", "--ignore-gpu-blocklist"];
const args = ["--no-sandbox", ...(url.includes("webgpu") ? software : ["--disable-gpu"])];
const browser = await launch({ executablePath: chromium, args });
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1100, height: 830 });
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  await page.goto(url);
  if (url.includes("webgpu") && !(await page.evaluate(async () => navigator.gpu && (await navigator.gpu.requestAdapter())))) {
    console.log(JSON.stringify({ missing: "This browser has no WebGPU." }));
    process.exit(0);
  }
  await page.waitForSelector("#train:not([disabled])", { timeout: 60000 });
  await page.click("#train");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Trained"), { timeout: 120000 });
  const drawn = await page.$("#drawn");
  const box = await drawn.boundingBox();
  const at = (x, y) => [box.x + x * box.width, box.y + y * box.height];
  await page.mouse.move(...at(0.4, 0.25)); // a 1, with its upstroke
  await page.mouse.down();
  await page.mouse.move(...at(0.55, 0.1), { steps: 10 });
  await page.mouse.move(...at(0.55, 0.9), { steps: 20 });
  await page.mouse.up();
  const text = (id) => page.$eval(id, (one) => one.textContent);
  await page.waitForFunction(() => document.getElementById("answer").textContent.startsWith("This is a"));
  await page.screenshot({ path: screenshot });
  const told = [await text("#status"), await text("#answer")];
  await writeFile(state, Uint8Array.from(await page.evaluate(() => Array.from(window.trainer.saveState()))));
  const changed = (old) => page.waitForFunction((was) => document.getElementById("status").textContent !== was, {}, old);
  for (const act of [() => page.click("#add"), ...[state, ...files].map((file) => async () => {
    const name = file.split("/").at(-1);
    await (await page.$(name.startsWith("rows") ? "#rows" : "#load")).uploadFile(file);
  })]) {
    const before = await text("#status");
    await act();
    await changed(before);
    await page.waitForSelector("#train:not([disabled])");
    told.push(await text("#status"));
  }
  console.log(JSON.stringify({ told, errors }));
} finally {
  await browser.close();
}
