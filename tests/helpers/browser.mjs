// Opens the page as a person would: node drive.mjs PUPPETEER CHROMIUM URL STATE SCREENSHOT. Writes the trained state.
import { writeFile } from "node:fs/promises";

const [puppeteer, chromium, url, state, screenshot] = process.argv.slice(2);
const { launch } = await import(puppeteer);
const software = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan", "--ignore-gpu-blocklist"];
const args = ["--no-sandbox", ...(url.includes("webgpu") ? software : ["--disable-gpu"])];
const browser = await launch({ executablePath: chromium, args });
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 800, height: 980 });
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
  await page.mouse.move(box.x + 90, box.y + 20);
  await page.mouse.down();
  await page.mouse.move(box.x + 90, box.y + 140, { steps: 20 });
  await page.mouse.up();
  await page.screenshot({ path: screenshot });
  const status = () => page.$eval("#status", (one) => one.textContent);
  const said = (start) => page.waitForFunction((text) => document.getElementById("status").textContent.startsWith(text), {}, start);
  const told = [await status()];
  await page.click("#guess");
  await said("This is a");
  told.push(await status());
  await page.click("#add");
  told.push(await status());
  await writeFile(state, Uint8Array.from(await page.evaluate(() => Array.from(window.trainer.saveState()))));
  await (await page.$("#load")).uploadFile(state);
  await said("The state is loaded");
  console.log(JSON.stringify({ told, errors }));
} finally {
  await browser.close();
}
