// The words that prompts are made of: common, lower-case and English, so that they are one token
// each in most vocabularies.
#include "load/prompts.h"

namespace kvant::load {
namespace {

// clang-format off
constexpr std::string_view kWords[] = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "government",
    "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
    "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game",
    "line", "end", "member", "law", "car", "city", "community", "name", "president", "team",
    "minute", "idea", "body", "information", "back", "parent", "face", "others", "level",
    "office", "door", "health", "person", "art", "war", "history", "party", "result", "change",
    "morning", "reason", "research", "girl", "guy", "moment", "air", "teacher", "force",
    "education", "foot", "boy", "age", "policy", "process", "music", "market", "sense", "nation",
    "plan", "college", "interest", "death", "experience", "effect", "use", "class", "control",
    "field", "development", "role", "effort", "rate", "heart", "drug", "show", "leader", "light",
    "voice", "wife", "police", "mind", "price", "report", "decision", "son", "view",
    "relationship", "town", "road", "arm", "difference", "value", "building", "action", "season",
    "society", "tax", "director", "position", "player", "record", "paper", "space", "ground",
    "form", "event", "official", "matter", "center", "couple", "site", "project", "activity",
    "star", "table", "need", "court", "oil", "situation", "cost", "industry", "figure", "street",
    "image", "phone", "data", "picture", "practice", "piece", "land", "product", "doctor", "wall",
    "patient", "worker", "news", "test", "movie", "north", "love", "support", "technology",
    "step", "baby", "computer", "type", "attention", "film", "tree", "source", "hair", "window",
    "evidence", "culture", "chance", "brother", "energy", "period", "course", "summer", "plant",
    "opportunity", "term", "letter", "condition", "choice", "south", "floor", "campaign",
    "material", "population", "call", "economy", "hospital", "church", "risk", "fire", "future",
    "bank", "west", "sport", "board", "subject", "officer", "rest", "behavior", "performance",
    "fight", "top", "goal", "second", "bed", "order", "author", "blood", "agency", "nature",
    "color", "store", "sound", "movement", "page", "race", "concern", "series", "language",
    "response", "animal", "factor", "decade", "article", "east", "artist", "scene", "stock",
    "career", "treatment", "approach", "size", "dog", "fund", "media", "sign", "thought", "list",
    "individual", "quality", "pressure", "answer", "resource", "meeting", "disease", "success",
    "cup", "amount", "ability", "staff", "character", "growth", "loss", "degree", "attack",
    "region", "television", "box", "training", "trade", "deal", "election", "feeling", "standard",
    "bill", "message", "analysis", "benefit", "sex", "lawyer", "section", "glass", "skill",
    "sister", "professor", "operation", "crime", "stage", "authority", "design", "sort",
    "knowledge", "gun", "station", "strategy", "truth", "song", "example", "environment", "leg",
    "dark", "public", "note", "husband", "sky", "red", "blue", "green", "white", "black", "small",
    "large", "long", "short", "old", "new", "good", "great", "high", "low", "early", "late",
    "young", "best", "free", "full", "hard", "easy", "open", "close", "clear", "simple", "strong",
    "true", "real", "local", "social", "human", "major", "hot", "cold", "fast", "slow", "deep",
    "wide", "happy",
};
// clang-format on

}  // namespace

std::span<const std::string_view> common_words() { return kWords; }

}  // namespace kvant::load
