// docs/openapi.json against the server: routes, fields, their bounds and types, and real answers.
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/json_schema.h"
#include "server/routes.h"
#include "server/serving_harness.h"

namespace kvant::server {
namespace {

const Json kDocument = Json::parse(openapi_text());
const JsonSchema kSchema(kDocument);
const ChatTokenizer kTokenizer;
const ApiModel kModel = {.name = "toy", .tokenizer = kTokenizer, .context = 4096};

// A body that the document describes, and who reads it.
struct Body {
  const char* schema;
  std::optional<ApiError> (*error)(const Json& body);
};
const Body kBodies[] = {
    {"CompletionRequest", [](const Json& b) { return parse_completions(b, kModel).error; }},
    {"ChatRequest", [](const Json& b) { return parse_chat(b, kModel).error; }},
    {"TokenizeTextRequest", [](const Json& b) { return parse_tokenize(b, kModel).error; }},
    {"TokenizeMessagesRequest", [](const Json& b) { return parse_tokenize(b, kModel).error; }},
    {"DetokenizeRequest", [](const Json& b) { return parse_detokenize(b, kModel).error; }},
};
const Json& schema_of(const std::string& name) {
  return kSchema.at("#/components/schemas/" + name);
}

// Every number in a field's schema, which are its bounds.
void add_numbers(const Json& schema, std::vector<Json>& out) {
  if (schema.is_number()) out.push_back(schema);
  if (!schema.is_structured()) return;
  for (const auto& [key, value] : schema.items()) {
    if (key == "$ref") add_numbers(kSchema.at(value), out);
    add_numbers(value, out);
  }
}

// Values of every type, and those at the field's bounds and beside them.
std::vector<Json> values_for(const Json& schema) {
  const Json message = {{"role", "user"}, {"content", "a"}};
  const Json part = {{"role", "user"},
                     {"content", Json::array({{{"type", "text"}, {"text", "a"}}})}};
  const Json image = {{"role", "user"}, {"content", Json::array({{{"type", "image_url"}}})}};
  std::vector<Json> out = {nullptr,
                           true,
                           false,
                           "",
                           "a",
                           "toy",
                           0,
                           1,
                           1.0,
                           -1,
                           0.5,
                           1.5,
                           1e300,
                           -1e300,
                           "1",
                           "true",
                           Json::array(),
                           Json::object(),
                           Json{"a"},
                           Json::array({""}),
                           Json{1, "a"},
                           Json{1, 2},
                           Json{1.0},
                           Json{1.5},
                           Json{-1},
                           Json{"a", "b"},
                           Json(std::vector<std::string>(17, "a")),
                           Json::array({Json{1, 2}, Json{3}}),
                           Json::array({Json{1, 2}, "a"}),
                           Json::array({Json::array()}),
                           Json::array({nullptr}),
                           Json{{"a", 1}},
                           Json::array({Json{{"a", 1}}}),
                           Json::array({message}),
                           Json::array({message, part}),
                           Json::array({image}),
                           Json::array({Json{{"role", 1}}}),
                           Json::array({Json{{"role", "user"}, {"content", 1}}}),
                           Json{{"include_usage", true}},
                           Json{{"include_usage", 1}}};
  add_numbers(schema, out);
  const std::vector<Json> bounds(out);
  for (const Json& bound : bounds) {
    const std::optional<int64_t> number = integer_of(bound);
    if (!number) continue;
    if (*number > std::numeric_limits<int64_t>::min()) out.push_back(*number - 1);
    out.push_back(static_cast<uint64_t>(*number) + 1);
    if (*number < 0) out.back() = *number + 1;
  }
  for (const Json& allowed : schema.value("enum", Json::array())) out.push_back(allowed);
  return out;
}

TEST(OpenApi, EveryRouteIsInTheDocumentAndTheOtherWayRound) {
  size_t described = 0;
  for (const auto& [path, methods] : kDocument["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_EQ(allowed_method(path), method == "get" ? "GET" : "POST") << path;
      ++described;
    }
  }
  EXPECT_EQ(described, all_paths().size());
  for (const Path& p : all_paths()) EXPECT_TRUE(kDocument["paths"].contains(p.path)) << p.path;
}

// A reader says which fields it knows when it is given one that it doesn't.
TEST(OpenApi, EveryFieldThatIsReadIsInTheDocumentAndTheOtherWayRound) {
  for (const Body& body : kBodies) {
    Json asked = schema_of(body.schema)["example"];
    ASSERT_FALSE(body.error(asked)) << body.schema;
    asked["nonsense"] = 1;
    const auto error = body.error(asked);
    ASSERT_TRUE(error) << body.schema;
    EXPECT_EQ(error->param, "nonsense");
    std::string described;
    std::set<std::string> names;
    for (const auto& [name, schema] : schema_of(body.schema)["properties"].items())
      names.insert(name);
    for (const std::string& name : names) described += (described.empty() ? "" : ", ") + name;
    EXPECT_EQ(error->message, "unknown field \"nonsense\", wanted one of " + described)
        << body.schema;
  }
}

// Each field with values of every type and around its bounds: what the document allows is taken,
// all else is a 400 that names the field.
TEST(OpenApi, EveryFieldTakesWhatTheDocumentAllowsAndNothingElse) {
  int taken = 0, refused = 0;
  for (const Body& body : kBodies) {
    const Json& schema = schema_of(body.schema);
    for (const auto& [name, field] : schema["properties"].items()) {
      for (const Json& value : values_for(field)) {
        Json asked = schema["example"];
        asked[name] = value;
        const bool is_valid = kSchema.allows(schema, asked);
        const auto error = body.error(asked);
        const bool is_model = error && error->http == 404 && name == "model";
        EXPECT_EQ(is_valid, !error || is_model)
            << body.schema << " " << name << " " << value << (error ? ": " + error->message : "");
        ++(is_valid ? taken : refused);
        if (!error || is_model) continue;
        EXPECT_EQ(error->http, 400) << name << " " << value;
        EXPECT_EQ(error->param, name) << value << ": " << error->message;
        EXPECT_NE(error->message.find(name), std::string::npos) << error->message;
      }
    }
  }
  EXPECT_GT(taken, 400);
  EXPECT_GT(refused, 1000);
}

TEST(OpenApi, ABodyWithoutARequiredFieldIsRefused) {
  for (const Body& body : kBodies) {
    const auto error = body.error(Json::object());
    ASSERT_TRUE(error) << body.schema;
    EXPECT_EQ(error->http, 400);
  }
}

class OpenApiAnswers : public ServingTest {
 protected:
  // The answer to an operation is what the document says of its status.
  void expect_described(const std::string& path, const std::string& body = "") const {
    const load::HttpAnswer answer = ask(path, body);
    const Json& operation = kDocument["paths"][path][body.empty() ? "get" : "post"];
    const std::string status = std::to_string(answer.status);
    ASSERT_TRUE(operation["responses"].contains(status)) << path << " " << status;
    const Json& response = kSchema.resolved(operation["responses"][status]);
    const Json& schema = response["content"]["application/json"]["schema"];
    EXPECT_TRUE(kSchema.allows(schema, Json::parse(answer.body))) << path << " " << answer.body;
  }
};

TEST_F(OpenApiAnswers, AreAsDescribed) {
  for (const std::string path : {"/health", "/ready", "/version", "/v1/models", "/openapi.json"})
    expect_described(path);
  for (const std::string path :
       {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    expect_described(path, "{");
    const Json& schema =
        kDocument["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    const Json& one = schema.contains("oneOf") ? schema["oneOf"][0] : schema;
    Json body = kSchema.resolved(one)["example"];
    expect_described(path, body.dump());
    body["model"] = "another";
    expect_described(path, body.dump());
  }
  Json scored = {{"prompt", "a b"}, {"logprobs", 2}, {"echo", true}, {"n", 2}, {"max_tokens", 3}};
  expect_described("/v1/completions", scored.dump());
  Json chat = schema_of("ChatRequest")["example"];
  chat["logprobs"] = true;
  chat["top_logprobs"] = 2;
  expect_described("/v1/chat/completions", chat.dump());
}

TEST_F(OpenApiAnswers, StreamsArePiecesAsDescribed) {
  const Json usage = {{"include_usage", true}};
  for (const Json& piece :
       stream("/v1/completions",
              {{"prompt", "a"}, {"max_tokens", 3}, {"logprobs", 1}, {"stream_options", usage}}))
    EXPECT_TRUE(kSchema.allows(schema_of("CompletionChunk"), piece)) << piece;
  Json chat = schema_of("ChatRequest")["example"];
  chat["logprobs"] = true;
  chat["stream_options"] = usage;
  for (const Json& piece : stream("/v1/chat/completions", chat))
    EXPECT_TRUE(kSchema.allows(schema_of("ChatCompletionChunk"), piece)) << piece;
}

TEST_F(OpenApiAnswers, TheServedDocumentHasTheModelsVocabulary) {
  Json document = get("/openapi.json");
  Json& maximum = document["components"]["schemas"]["TokenId"]["maximum"];
  EXPECT_EQ(maximum.get<int>(), toy::kVocab - 1);
  maximum = kDocument["components"]["schemas"]["TokenId"]["maximum"];
  EXPECT_EQ(document.dump(), kDocument.dump());
}

}  // namespace
}  // namespace kvant::server
