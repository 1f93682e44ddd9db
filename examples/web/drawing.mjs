// What the page draws: the loss curve, the visitor's digit, and the probabilities.

const SIZE = 32, PIXELS = 8; // the digits of scikit-learn are bitmaps of 32 x 32, of which each pixel counts 4 x 4

/** Draw with a thick pen; call `done` after each stroke. */
export function startDrawing(canvas, done) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.lineWidth = canvas.width / 8;
  pen.lineCap = pen.lineJoin = "round";
  pen.strokeStyle = "white";
  const place = ({ offsetX, offsetY }) => [(offsetX * canvas.width) / canvas.clientWidth, (offsetY * canvas.height) / canvas.clientHeight];
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    line(pen, last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    line(pen, last, place(event));
    last = place(event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => {
      last = null;
      done();
    });
  }
}

function line(pen, from, to) {
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}

export function clearDrawing(canvas, chances, answer) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  chances.replaceChildren();
  answer.textContent = "Draw a digit of 0 to 9 in the black field.";
}

/** Return the drawing as a row of the data: fitted into the field, in 8 x 8 numbers of 0 to 1; null where nothing is drawn. */
export function drawnRow(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const inked = Array.from({ length: width * height }, (_, i) => i).filter((i) => data[4 * i + 3] > 127);
  if (!inked.length) return null;
  const [columns, lines] = [inked.map((i) => i % width), inked.map((i) => Math.floor(i / width))];
  const [left, top] = [columns, lines].map((all) => all.reduce((one, other) => Math.min(one, other)));
  const [wide, high] = [columns, lines].map((all, i) => all.reduce((one, other) => Math.max(one, other)) - [left, top][i] + 1);
  const scale = SIZE / Math.max(wide, high);
  const small = new OffscreenCanvas(SIZE, SIZE).getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(canvas, left, top, wide, high, (SIZE - wide * scale) / 2, (SIZE - high * scale) / 2, wide * scale, high * scale);
  const fine = small.getImageData(0, 0, SIZE, SIZE).data, row = new Float32Array(PIXELS * PIXELS), step = SIZE / PIXELS;
  for (let i = 0; i < SIZE * SIZE; i++) {
    const place = PIXELS * Math.floor(Math.floor(i / SIZE) / step) + Math.floor((i % SIZE) / step);
    row[place] += fine[4 * i + 3] / 255 / step ** 2;
  }
  return row;
}

export function showChances(list, classes, chances) {
  list.replaceChildren(...classes.map((name, i) => {
    const line = document.createElement("div"), bar = document.createElement("i");
    bar.style.width = `${80 * chances[i]}%`;
    line.append(String(name), bar);
    return line;
  }));
}

/** Draw the loss of each step, and its mean over the last 30 steps. */
export function showCurve(canvas, losses) {
  const ratio = devicePixelRatio, [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), top = Math.max(2.5, ...losses), [left, bottom] = [28, height - 24];
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  const x = (i) => left + ((i + 1) / Math.max(1, losses.length)) * (width - left - 4), y = (loss) => bottom - (loss / top) * (bottom - 8);
  const unit = top > 5 ? Math.ceil(top / 5) : 0.5;
  for (let loss = 0; loss <= top; loss += unit) {
    pen.fillStyle = "#52606d";
    pen.fillText(String(loss), 0, y(loss) + 4);
    pen.fillStyle = "#e4e7eb";
    pen.fillRect(left, y(loss), width - left, 1);
  }
  pen.fillStyle = "#52606d";
  pen.fillText(losses.length ? `${losses.length} steps` : "No steps yet", left, height - 4);
  const means = losses.map((_, i) => losses.slice(Math.max(0, i - 29), i + 1).reduce((one, other) => one + other) / Math.min(30, i + 1));
  for (const [values, color, thick] of [[losses, "#a3c4ea", 1], [means, "#0b69c7", 2]]) {
    pen.beginPath();
    values.forEach((value, i) => pen.lineTo(x(i), y(value)));
    [pen.strokeStyle, pen.lineWidth] = [color, thick];
    pen.stroke();
  }
}
