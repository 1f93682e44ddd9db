// Trains digits by onnxruntime's C API: digits FOLDER [in-order]. FOLDER is what make_digits.py of examples/node writes.
#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <string>
#include <vector>

using Shape = std::vector<int64_t>;
using Tensors = std::map<std::string, OrtValue*>;

const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
OrtMemoryInfo* memory = nullptr;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  std::exit(1);
}

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) std::fprintf(stderr, "%s cannot be read\n", path.c_str()), std::exit(1);
  return std::vector<char>(std::istreambuf_iterator<char>(file), {});
}

// The tensor borrows the memory: it must live as long.
OrtValue* tensor(void* data, size_t bytes, const Shape& shape, ONNXTensorElementDataType type) {
  OrtValue* value = nullptr;
  check(api->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape.data(), shape.size(), type, &value));
  return value;
}

template <typename T>
OrtValue* tensor(std::vector<T>& data, const Shape& shape, ONNXTensorElementDataType type) {
  return tensor(data.data(), data.size() * sizeof(T), shape, type);
}

struct Session {
  OrtSession* session = nullptr;
  std::vector<std::string> inputs, outputs;

  Session(OrtEnv* env, const std::string& path) {
    OrtSessionOptions* options = nullptr;
    OrtAllocator* allocator = nullptr;
    check(api->CreateSessionOptions(&options));
    check(api->SetIntraOpNumThreads(options, 1));
    check(api->CreateSession(env, path.c_str(), options, &session));
    check(api->GetAllocatorWithDefaultOptions(&allocator));
    size_t count = 0;
    char* name = nullptr;
    check(api->SessionGetInputCount(session, &count));
    for (size_t i = 0; i < count; i++) check(api->SessionGetInputName(session, i, allocator, &name)), inputs.push_back(name);
    check(api->SessionGetOutputCount(session, &count));
    for (size_t i = 0; i < count; i++) check(api->SessionGetOutputName(session, i, allocator, &name)), outputs.push_back(name);
  }

  Tensors run(const Tensors& given) const {
    std::vector<const char*> in, out;
    std::vector<const OrtValue*> values;
    for (const auto& name : inputs) in.push_back(name.c_str()), values.push_back(given.at(name));
    for (const auto& name : outputs) out.push_back(name.c_str());
    std::vector<OrtValue*> results(out.size(), nullptr);
    check(api->Run(session, nullptr, in.data(), values.data(), in.size(), out.data(), out.size(), results.data()));
    Tensors found;
    for (size_t i = 0; i < out.size(); i++) found[outputs[i]] = results[i];
    return found;
  }
};

template <typename T>
T* data_of(OrtValue* value) {
  void* data = nullptr;
  check(api->GetTensorMutableData(value, &data));
  return static_cast<T*>(data);
}

// A tensor of the file of safetensors: where its numbers lie.
struct Place { size_t begin, end; };

std::map<std::string, Place> read_state(std::vector<char>& file, Tensors& state) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), 8);
  const std::string header(file.data() + 8, size);
  const std::regex entry(R"re("([^"]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),(\d+)\]\})re");
  const std::map<std::string, ONNXTensorElementDataType> types = {{"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE}, {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64}};
  std::map<std::string, Place> places;
  for (std::sregex_iterator found(header.begin(), header.end(), entry), end; found != end; ++found) {
    const std::smatch& one = *found;
    const std::string sizes = one[3];
    const Shape shape = sizes.empty() ? Shape{} : Shape{std::stoll(sizes)};  // vectors, and the number of steps
    const Place place{8 + size + std::stoull(one[4]), 8 + size + std::stoull(one[5])};
    places[one[1]] = place;
    state[one[1]] = tensor(file.data() + place.begin, place.end - place.begin, shape, types.at(one[2]));
  }
  return places;
}

int main(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "digits FOLDER [in-order]\n"), 2;
  const std::string folder = arguments[1];
  const bool shuffles = count < 3 || std::string(arguments[2]) != "in-order";
  OrtEnv* env = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "digits", &env));
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  const Session epoch(env, folder + "/digits/epoch.onnx"), predict(env, folder + "/digits/predict.onnx");

  std::vector<char> pixels = read(folder + "/X.float32"), labels = read(folder + "/y.int32"), file = read(folder + "/digits/state.safetensors");
  const int64_t rows = labels.size() / 4, batch = 32, steps = (rows + batch - 1) / batch;  // batch_size of the manifest
  std::vector<int64_t> y(rows), order(steps * batch, -1);
  for (int64_t i = 0; i < rows; i++) y[i] = reinterpret_cast<int32_t*>(labels.data())[i];
  std::vector<float> weights(rows, 1.0f), rates(steps, 0.001f);

  Tensors state;
  const auto places = read_state(file, state);
  Tensors given = {
    {"X", tensor(pixels.data(), pixels.size(), {rows, 64}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)},
    {"y", tensor(y, {rows}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)},
    {"sample_weight", tensor(weights, {rows}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)},
    {"learning_rate", tensor(rates, {steps}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)},
    {"order", tensor(order, {steps, batch}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)}};
  std::mt19937 random(0);
  std::iota(order.begin(), order.begin() + rows, 0);
  for (int i = 1; i <= 5; i++) {
    if (shuffles) std::shuffle(order.begin(), order.begin() + rows, random);
    for (const auto& [name, value] : state) given[name] = value;
    Tensors results = epoch.run(given);
    for (auto& [name, value] : state) api->ReleaseValue(value), value = results.at("new_" + name);
    const float* losses = data_of<float>(results.at("losses"));
    std::printf("epoch %d: loss %.4f\n", i, std::accumulate(losses, losses + steps, 0.0) / steps);
    api->ReleaseValue(results.at("losses"));
  }

  const int64_t* found = data_of<int64_t>(predict.run({{"X", given.at("X")}, {"parameters", state.at("parameters")}}).at("label"));
  int64_t right = 0;
  for (int64_t i = 0; i < rows; i++) right += found[i] == y[i];
  std::printf("accuracy %.3f\n", static_cast<double>(right) / rows);
  for (const auto& [name, place] : places) std::memcpy(file.data() + place.begin, data_of<char>(state.at(name)), place.end - place.begin);
  std::ofstream(folder + "/trained.safetensors", std::ios::binary).write(file.data(), file.size());
}
