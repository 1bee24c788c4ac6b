// PlanReport: a plan as tables, sentences, JSON and CSV.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/output.h"
#include "engine/settings.h"
#include "kvant/plan.h"

namespace kvant::cli {

// A plan and what it was made from.
struct PlanReport {
  const ModelShape& shape;
  const PlanRequest& request;
  const Plan& plan;
  // The first format on the whole model: what is said of single layers.
  std::string first_format;
  const CachePlanner& planner;
  bool exact_bytes = false;  // "12345678" in place of "12.3 MB"
};

// Exact where the report asks for that, else for people.
std::string bytes_text(const PlanReport& report, uint64_t bytes);

std::string plan_text(const PlanReport& report, bool colored);
std::string plan_layers_text(const PlanReport& report);
Json plan_json(const PlanReport& report);
// One row for every row of the plan, then two for every one of the workload; `row` says which.
// Notes aren't in it.
std::string plan_csv(const PlanReport& report);
std::string plan_notes_text(const PlanReport& report);  // "note: …" lines

// What `kvant plan` says when it is asked nothing.
std::string plan_lesson();

}  // namespace kvant::cli
