// kvant: the program. The table of commands, and what happens to a status at the end.

#include <fmt/format.h>

#include <exception>

#include "cli/arguments.h"
#include "cli/check_outputs.h"
#include "cli/help.h"
#include "cli/memory.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "simd/cpu.h"

namespace kvant::cli {

std::span<const Command> all_commands() {
  using G = OptionGroup;
  static const Command kCommands[] = {
      {"plan",
       "Plan",
       "[MODEL]",
       "the exact bytes of a model's cache, before anything runs",
       "From a config.json, a directory or a GGUF file (- reads a config.json from the standard "
       "input): bytes per token and at every length, format by format, layer by layer, counted as "
       "the cache's pool counts them. With a device: what fits beside the weights. With a "
       "workload: which format is the first that carries it. Effective bits are all bytes held, "
       "with scales, exact pages and padding, per element of K and V. With a calibration presets "
       "mean what they mean with it where the model runs.",
       "kvant plan config.json --tokens 8k,128k --kv bf16,int8,int4 --explain\n"
       "kvant plan ./Llama-3.1-8B --device-memory 24G --workspace 1G --prompt 2k:8k --output "
       "300:1k --concurrency 16\n"
       "curl -s URL/config.json | kvant plan - --tokens 32k --tp 8 --json",
       {G::kPlan, G::kDevice, G::kWorkload, G::kCache, G::kLayerFormats, G::kCalibration,
        G::kPlanOutput, G::kJson, G::kCsv},
       run_plan},
      {"compare",
       "Measure",
       "MODEL",
       "what every format costs: bits, bytes, speed, perplexity, divergence from BF16",
       "Runs the same text through the model once per format, in lock step with a BF16 cache, and "
       "prints one row per format: bits "
       "per element as named, sealed (with scales) and effective (with pages kept exact), bytes "
       "per token and in all, speed, "
       "perplexity, mean and 99th percentile of the KL divergence, agreement on the best token. "
       "Then it recommends the format with the "
       "fewest effective bits whose mean, tail and agreement stay within the limits; one that "
       "decodes more than a tenth slower than "
       "BF16 only if no other will do. Where a format outside the limits ruins a few layers only, "
       "it names them and the --kv-layers "
       "that keeps them exact.",
       "kvant compare SmolLM2-135M-Instruct.Q4_1.gguf --text data/wikitext2-test.txt --context "
       "2048 --kv bf16,int8,k8v4,int4\n"
       "kvant compare ./Qwen3-0.6B --kv int8,int4 --kv-layers \"0-1=bf16\" --json=report.json "
       "--csv=report.csv",
       {G::kManyFormats, G::kCache, G::kLayerFormats, G::kCalibration, G::kText, G::kMeasure,
        G::kCompare, G::kModel, G::kVerbose, G::kThreads, G::kJson, G::kCsv},
       run_compare},
      {"perplexity",
       "Measure",
       "MODEL",
       "the quality of one format on a text",
       "Perplexity over a text read through the quantized cache, and the KL divergence to a BF16 "
       "cache on the same tokens. The digest is a "
       "hash of all logits: the same for every --chunk that is a multiple of 64, for every chunk "
       "with --invariant, and for any number of threads.",
       "kvant perplexity model.gguf --kv int8 --text data/wikitext2-test.txt --context 2048",
       {G::kCache, G::kLayerFormats, G::kCalibration, G::kText, G::kMeasure, G::kPerplexity,
        G::kModel, G::kVerbose, G::kThreads, G::kJson},
       run_perplexity},
      {"sensitivity",
       "Measure",
       "MODEL",
       "which layers a format hurts, and the best mix of formats for a budget of bits",
       "For every layer and format: the relative error of attention's scores and outputs on the "
       "model's own keys, values and queries, and the KL divergence from BF16 when that layer "
       "alone "
       "is in the format (a run of the model each). From these it finds the mix of formats over "
       "the "
       "layers that costs least within --budget, runs it beside each format everywhere, and prints "
       "the --kv-layers to type. --out keeps all of it. How well the cheap error ranks layers as "
       "the divergence does is "
       "given as Spearman's correlation.",
       "kvant sensitivity model.gguf --text data/wikitext2-test.txt --kv int8,int4,int2 --budget "
       "4.5 --out measured\n"
       "kvant inspect measured",
       {G::kSensitivity, G::kCache, G::kCalibration, G::kText, G::kMeasure, G::kModel, G::kVerbose,
        G::kThreads, G::kJson},
       run_sensitivity},
      {"bench",
       "Measure",
       "WHAT",
       "the speed of attention on a cache, beside ggml's and the memory's, and of sealing",
       "WHAT is attention or seal, over random keys and values, format by format; formats that "
       "need "
       "calibration get stand-ins. Every answer is checked before it is timed. Of attention, "
       "ggml's "
       "own flash attention runs in the same rounds; --targets measures all that its speed is held "
       "to, and says what is reached. Of seal, all formats of the registry unless --kv names some: "
       "the encoders, a prefill, and what a decode step spends on it.",
       "kvant bench attention --heads 32 --kv-heads 8 --dim 128 --tokens 8192 --kv bf16,int8,int4\n"
       "kvant bench attention --targets --only decode/9x3x64 --json=targets.json\n"
       "kvant bench seal --kv int8,int4,fp8 --heads 32 --kv-heads 8 --dim 128 --tokens 8192",
       {G::kBench, G::kCache, G::kThreads, G::kJson},
       run_bench},
      {"load",
       "Measure",
       "URL|MODEL",
       "what a server bears: latencies, throughput and failures under load",
       "Sends streamed completions to any server that speaks OpenAI's API over http, so many at a "
       "time (--concurrency) or a second (--rate), and prints for each level TTFT, TPOT, ITL and "
       "E2E with their percentiles, rates of requests and tokens, failures by kind, and goodput "
       "under an --slo. Tokens are those of the server's usage, or of a --tokenizer, never a "
       "number "
       "of chunks. With --matrix it starts kvant serve MODEL itself, once per format. What every "
       "figure means is in docs/load.md. Ctrl-C ends with what was measured.",
       "kvant load http://127.0.0.1:8000 --input-len 512:1024 --output-len 128 --ignore-eos "
       "--concurrency 1,4,8 --duration 60\n"
       "kvant load http://127.0.0.1:8000 --rate 0.5,1,2 --slo ttft=2s,itl=100ms --json=load.json\n"
       "kvant load http://127.0.0.1:8000 --find-max --slo ttft=2s,itl=100ms,failures=1% "
       "--ignore-eos\n"
       "kvant load model.gguf --matrix kv=bf16,int8,int4 --input-len 512,2048 --concurrency 1,8 "
       "--ignore-eos",
       {G::kLoadRequests, G::kLoad, G::kLoadServer, G::kJson},
       run_load},
      {"calibrate",
       "Calibrate",
       "MODEL",
       "what formats need to know of a model, learned from text",
       "Reads documents through the model and writes kvant-cache.safetensors: for every layer and "
       "KV head the basis in which its queries see least of the error of few bits, and how the "
       "bits are shared out (formats tc4, tc3 and tc2; alike to all channels: bal8, bal4, bal3 "
       "and bal2), or the scales of formats that take given ones (fp8_e4m3_head, int8_tensor, "
       "...). --calibration gives it to the other commands, whose presets int4, int3 and int2 "
       "then use it. Of a Hugging Face directory with scales for fp8_e4m3, --out is a checkpoint "
       "that vLLM loads with them, too. The text needn't be like what the model will read; a "
       "mixture of prose, code, languages and chat is safest.",
       "kvant calibrate model.gguf --data novels.txt,chat.jsonl --samples 64 --out .\n"
       "kvant compare model.gguf --calibration . --kv bf16,int4,int3,int2\n"
       "kvant calibrate ./Llama-3.2-1B --data chat.jsonl --for fp8_e4m3_tensor --out fp8kv\n"
       "kvant calibrate --stability model.gguf --data novels.txt",
       {G::kCalibrate, G::kMeasure, G::kModel, G::kThreads, G::kJson},
       run_calibrate},
      {"generate",
       "Run",
       "MODEL",
       "an answer to a prompt, as it is written",
       "Continues the prompt, or answers it in the model's chat template with --chat. At the end "
       "it prints speed and cache size.",
       "kvant generate model.gguf -p \"The capital of France is\" -n 32 --kv int8\n"
       "kvant generate model.gguf --chat --prompt-file question.txt --temperature 0.7 --top-p 0.9 "
       "--seed 1",
       {G::kPrompt, G::kSampling, G::kCache, G::kLayerFormats, G::kCalibration, G::kMeasure,
        G::kModel, G::kVerbose, G::kThreads, G::kJson},
       run_generate},
      {"chat",
       "Run",
       "MODEL",
       "a conversation in the terminal",
       "A conversation in the model's own chat template. The cache goes on from turn to turn: only "
       "what is new is computed. Reads one "
       "message per line, from a terminal or a pipe. /reset forgets the conversation and starts "
       "anew; /exit, /quit or Ctrl-D ends the program; Ctrl-C ends an answer.",
       "kvant chat model.gguf --kv int8 --system \"Answer in one sentence.\"",
       {G::kChat, G::kSampling, G::kCache, G::kLayerFormats, G::kCalibration, G::kMeasure,
        G::kModel, G::kVerbose, G::kThreads},
       run_chat},
      {"serve",
       "Run",
       "MODEL",
       "an OpenAI-compatible server on the quantized cache",
       "Serves completions and chat completions over HTTP. Requests are batched as they come, a "
       "long prompt in chunks between the others' tokens; what prompts have in common is computed "
       "once and kept, sealed; out of pages, the newest answers wait in memory and go on bit for "
       "bit. docs/serving.md has the endpoints, the metrics and every error. Ctrl-C or SIGTERM "
       "ends it when what runs is done, a second one at once.",
       "kvant serve model.gguf --kv int8 --memory 4G --port 8000\n"
       "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
       "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'",
       {G::kServe, G::kCache, G::kLayerFormats, G::kCalibration, G::kMeasure, G::kModel,
        G::kVerbose, G::kThreads},
       run_serve},
      {"logits",
       "Run",
       "MODEL",
       "the logits of every token, as a NumPy file",
       "For checking against other engines: float32, one row per token.",
       "kvant logits model.gguf --ids 1,2,3 --weights f32 --kv f32 --out logits.npy",
       {G::kLogits, G::kCache, G::kLayerFormats, G::kCalibration, G::kMeasure, G::kModel,
        G::kVerbose, G::kThreads, G::kJson},
       run_logits},
      {"inspect",
       "Look",
       "MODEL",
       "what a model is: layers, heads, types, cache shape, tokenizer, template",
       "Loads a model and prints its shape; of what kvant calibrate and kvant sensitivity --out "
       "left, a file or its directory, what it holds, without any model. With --scales it loads "
       "none either, and lists the scales of the cache that a checkpoint or a calibration carries: "
       "by layer and head, where each came from, and those that are missing, zero, NaN or absurd.",
       "kvant inspect model.gguf\nkvant inspect measured\nkvant inspect fp8kv --scales --strict",
       {G::kInspect, G::kModel, G::kThreads, G::kJson},
       run_inspect},
      {"formats",
       "Look",
       "[WORD]",
       "every cache format, and what the presets stand for",
       "The registry: bits, what shares a scale, where the scale comes from, which kernel reads it "
       "here. With a WORD only the formats that have it in their names.",
       "kvant formats\nkvant formats int4_token",
       {G::kJson},
       run_formats},
      {"tokenize",
       "Look",
       "MODEL",
       "text to token ids",
       "Prints one token per line, or ids and pieces as JSON, which is what every --ids-file "
       "reads.",
       "kvant tokenize model.gguf --text \"Hello world\"\n"
       "kvant tokenize model.gguf --text-file notes.txt --json=ids.json\n"
       "kvant detokenize model.gguf --ids-file ids.json",
       {G::kTokenize, G::kJson},
       run_tokenize},
      {"detokenize",
       "Look",
       "MODEL",
       "token ids to text",
       "Prints the text of a list of token ids.",
       "kvant detokenize model.gguf --ids 1,2,3",
       {G::kDetokenize, G::kJson},
       run_detokenize},
      {"doctor",
       "Look",
       "",
       "this machine: CPU, memory, bandwidth, versions, the kernels that will run",
       "Measures the memory's read bandwidth and names the code that every format runs on this "
       "CPU.",
       "kvant doctor",
       {G::kThreads, G::kJson},
       run_doctor},
  };
  return kCommands;
}

namespace {

Status run(std::span<const std::string> words, MemoryBudget& memory) {
  KVANT_TRY(check_isa_override());
  KVANT_ASSIGN(Arguments arguments, parse_arguments(words, all_commands()));
  if (arguments.version) return write_text("-", fmt::format("kvant {}\n", KVANT_VERSION));
  if (arguments.help) {
    return write_text("-", arguments.command != nullptr ? command_help(*arguments.command)
                                                        : program_help(all_commands()));
  }
  Invocation& in = arguments.invocation;
  in.memory = &memory;
  KVANT_TRY(check_outputs(*arguments.command, in));
  const Status status = arguments.command->run(in);
  if (status.code() != Code::kExhausted) return status;
  return exhausted(status.message() + memory.advice());
}

// A message is one sentence on one line, whatever a file put into it.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

}  // namespace
}  // namespace kvant::cli

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  kvant::cli::MemoryBudget memory;
  try {
    const kvant::Status status = kvant::cli::run(words, memory);
    if (!status.ok()) kvant::cli::note("kvant: {}\n", kvant::cli::one_line(status.message()));
    return kvant::exit_code(status.code());
  } catch (const std::bad_alloc&) {
    kvant::cli::note("kvant: {}{}\n", memory.explain_shortage(), memory.advice());
  } catch (const std::exception& e) {
    kvant::cli::note("kvant: {}\n", kvant::cli::one_line(e.what()));
  }
  return 1;
}
