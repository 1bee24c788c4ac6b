// The files that commands read and write: no input is ever lost, no output is ever half there.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>

#include "cli/new_file.h"
#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

const std::string kIds = tiny_model("llama");  // a model without a tokenizer

void expect_refusal(const ProgramRun& run, const std::string& part) {
  EXPECT_EQ(run.exit_code, 2) << part;
  EXPECT_EQ(run.err_lines(), 1u) << run.err;
  EXPECT_NE(run.err.find(part), std::string::npos) << run.err << "lacks " << part;
}

// A folder of its own, so that what is left there can be counted.
fs::path empty_folder(const std::string& name) {
  fs::remove_all(scratch() / name);
  fs::create_directories(scratch() / name);
  return scratch() / name;
}
size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(Usability, NoOutputOverwritesAnInput) {
  const fs::path folder = empty_folder("inputs");
  const std::string file = (folder / "input").string(), link = (folder / "link").string(),
                    twin = (folder / "twin").string(), model = tiny_chat_model();
  std::ofstream(file) << "1 2 3";
  fs::create_symlink(file, link);
  fs::create_hard_link(file, twin);
  using Words = std::vector<std::string>;
  for (const std::string& out : {file, link, twin, (folder / ".." / "inputs" / "input").string()}) {
    for (const Words& words : {Words{"logits", file, "--ids", "1,2", "--out", out},
                               {"logits", model, "--ids-file", file, "--out", out},
                               {"logits", model, "--ids", "1", "--out", "/dev/null",
                                "--json=" + out, "--ids-file", file},
                               {"generate", model, "--prompt-file", file, "--json=" + out},
                               {"compare", model, "--text", file, "--json=" + out},
                               {"compare", model, "--text", file, "--csv=" + out},
                               {"perplexity", model, "--ids-file", file, "--json=" + out},
                               {"tokenize", model, "--text-file", file, "--json=" + out},
                               {"detokenize", model, "--ids-file", file, "--json=" + out},
                               {"inspect", file, "--json=" + out}}) {
      expect_refusal(run_program(words), out + " would overwrite what ");
      EXPECT_EQ(slurp(file), "1 2 3");
    }
  }
  expect_refusal(run_program({"tokenize", model, "--text-file", file, "--json=" + link}),
                 "--json " + link + " would overwrite what --text-file reads");
  const std::string fresh = (folder / "fresh").string();
  expect_refusal(run_program({"logits", model, "--ids", "1", "--out", fresh, "--json=" + fresh}),
                 "--json and --out both go to");
  EXPECT_EQ(files_in(folder), 3u);
}

TEST(Usability, NoOutputOverwritesAModelsFile) {
  const std::string model = tiny_chat_model(), config = slurp(fs::path(model) / "config.json");
  const std::string link = (empty_folder("beside") / "config").string();
  fs::create_hard_link(fs::path(model) / "config.json", link);
  for (const std::string& out : {model + "/config.json", link}) {
    expect_refusal(run_program({"inspect", model, "--json=" + out}),
                   "--json " + out + " would overwrite a file of the model");
  }
  EXPECT_EQ(slurp(fs::path(model) / "config.json"), config);
  const std::string report = model + "/report.json";
  for (int run = 0; run < 2; ++run)  // the second time over the first one's
    EXPECT_EQ(run_program({"inspect", model, "--json=" + report}).exit_code, 0);
  fs::remove(report);
  fs::remove(link);
}

// The tiny model with one tensor of NaNs.
std::string nan_model(const std::string& tensor) {
  const fs::path model = empty_folder("nan-model");
  fs::copy(kIds, model, fs::copy_options::recursive);
  bool found = false;
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = slurp(entry.path());
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const nlohmann::json tensors = nlohmann::json::parse(bytes.substr(8, header));
    if (!tensors.contains(tensor)) continue;
    const nlohmann::json range = tensors[tensor]["data_offsets"];
    for (size_t at = range[0]; at < range[1]; ++at) bytes[8 + header + at] = '\xff';
    std::ofstream(entry.path(), std::ios::binary) << bytes;
    found = true;
  }
  EXPECT_TRUE(found) << tensor;
  return model.string();
}

TEST(Usability, LogitsThatAreNoNumbersAreRefusedAndLeaveNoFile) {
  const std::string model = nan_model("model.norm.weight");
  const fs::path folder = empty_folder("nan-out");
  const ProgramRun run =
      run_program({"logits", model, "--ids", "1,2", "--out", (folder / "x.npy").string()});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.err.find("kvant: the logit of id 0 at token 0 is"), std::string::npos) << run.err;
  EXPECT_EQ(files_in(folder), 0u);
}

TEST(Usability, AMessageNamesALayerOnce) {
  const std::string model = nan_model("model.layers.1.self_attn.k_proj.weight");
  const ProgramRun run = run_program({"logits", model, "--ids", "1,2", "--out", "/dev/null"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_NE(run.err.find("kvant: layer 1: K of sequence"), std::string::npos) << run.err;
}

TEST(NewFile, HasItsNameWhenItIsWholeAndNotBefore) {
  const fs::path folder = empty_folder("new-file");
  const std::string path = (folder / "x").string();
  {
    NewFile file(path);
    ASSERT_TRUE(file.write("half", 4).ok());
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(files_in(folder), 0u) << "given up";
  NewFile file(path);
  ASSERT_TRUE(file.write("whole", 5).ok());
  ASSERT_TRUE(file.finish().ok());
  EXPECT_EQ(slurp(path), "whole");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(NewFile, KeepsTheModeAndTheLinkOfAFileThatItReplaces) {
  const fs::path folder = empty_folder("replaced");
  std::ofstream(folder / "old") << "old";
  chmod((folder / "old").c_str(), 0640);
  fs::create_symlink("old", folder / "link");
  ASSERT_TRUE(write_text((folder / "link").string(), "new").ok());
  EXPECT_EQ(slurp(folder / "old"), "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  struct stat info = {};
  ASSERT_EQ(stat((folder / "old").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_TRUE(write_text("/dev/null", "x").ok());
  EXPECT_EQ(write_text("/dev/full", "x").code(), Code::kIo);
}

TEST(NewFile, GoesAwayWithTheProgramThatIsInterrupted) {
  const fs::path folder = empty_folder("interrupted");
  std::ofstream(folder / "x") << "old";
  const auto interrupted = [&](int signal) {
    std::signal(signal, SIG_DFL);  // nohup ignores one of them
    NewFile file((folder / "x").string());
    if (!file.write("half", 4).ok() || files_in(folder) != 2) std::abort();
    raise(signal);
  };
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(interrupted(signal), testing::KilledBySignal(signal), "");
    EXPECT_EQ(files_in(folder), 1u);
    EXPECT_EQ(slurp(folder / "x"), "old");
  }
}

TEST(Usability, APipeIsNoModelAndNobodyWaitsForIt) {
  const std::string pipe = (empty_folder("pipe") / "model.gguf").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* command : {"inspect", "chat"})
    expect_refusal(run_program({command, pipe}), "not a regular file");
  expect_refusal(run_program({"tokenize", pipe, "--text", "x"}), "not a regular file");
}

}  // namespace
}  // namespace kvant::cli
