#include "module/step_rule.hpp"

#include "format/json.hpp"

namespace dft {
namespace {

constexpr size_t kMaxGradients = 64;     // calls of torch.autograd.grad in one step that are kept apart
constexpr int64_t kJoined = 10'000'000;  // ns between iter(loader) and its first next() that are still one wait
constexpr int64_t kFewCalls = 4;         // of a model that does not train, before forward: a teacher
constexpr int64_t kManyCalls = 64;       // of other models, after which a step of inference begins with another one
constexpr int64_t kShortBeside = 4;      // times as short
constexpr int64_t kSamePace = 10;        // times as long: a pause between calls of a rollout that ends it
constexpr int64_t kLongAfter = 10;       // times as long as all calls of an evaluation: what follows is no part of it
constexpr int64_t kLongBetween = 4;      // times as long as a call: the program does something else between two of them
constexpr size_t kMaxModels = 16;
constexpr size_t kMaxLoaders = 64;  // a program may make one for every step

// The arguments of an event; those of every step fit into the buffer.
class Args {
 public:
  void text(std::string_view more) {
    if (more.empty()) return;
    if (size_t(buffer_ + sizeof buffer_ - at_) < more.size() + kRoom || !long_.empty()) {
      if (long_.empty()) long_.assign(buffer_, size_t(at_ - buffer_));
      long_.append(more);
    } else {
      at_ = put(at_, more);
    }
  }
  void add(std::string_view key, int64_t number) {
    if (!long_.empty()) {
      long_.append(",\"").append(key).append("\":");
      append_int(long_, number);
    } else {
      at_ = put_int(put(put(put(at_, ",\""), key), "\":"), number);
    }
  }
  void error(std::string_view name) {
    if (name.empty()) return;
    std::string quoted = ",\"error\":";
    append_json_string(quoted, name);
    text(quoted);
  }
  std::string_view all() const {
    return long_.empty() ? std::string_view(buffer_, size_t(at_ - buffer_)) : std::string_view(long_);
  }

 private:
  static constexpr size_t kRoom = 160;  // of the numbers that are added
  char buffer_[512];
  char* at_ = buffer_;
  std::string long_;
};

}  // namespace

// What every event says -----------------------------------------------------------------------------------------------

std::string StepRule::numbers() const {
  Args args;
  if (step_ && !step_->passes.empty() && !evaluation_.on) {
    args.add("step", number_);
    if (epoch_ >= 0) args.add("epoch", epoch_);
  }
  return std::string(args.all());
}

void StepRule::write(Stage stage, int64_t start, int64_t end, std::string_view more) {
  saw(end);
  Args args;
  args.text(more);
  if (step_ && !evaluation_.on && (!step_->passes.empty() || step_->inference)) {
    args.add("step", number_);
    if (epoch_ >= 0) args.add("epoch", epoch_);
  }
  events_.write(stage, start, end, args.all());
}

void StepRule::moved(int64_t t) {
  int64_t before = now_.moved.load(std::memory_order_relaxed);
  if (before && t - before > now_.longest.load(std::memory_order_relaxed))
    now_.longest.store(t - before, std::memory_order_relaxed);
  now_.moved.store(t, std::memory_order_release);
}

Doing StepRule::doing() const {
  if (fetching_) return Doing::kFetch;
  if (evaluation_.on || framework_evaluates_) return Doing::kEvaluate;
  if (inferring_) return Doing::kInfer;
  if (depth_) return Doing::kBackward;
  if (!optimizers_.empty()) return Doing::kOptimizer;
  if (forward_ || marked_ || in_model_) return Doing::kForward;
  return step_ ? Doing::kOwnCode : Doing::kBetween;
}

void StepRule::publish(int64_t t) {
  moved(t);
  // Without a loader, what follows the optimizer belongs to the step that comes.
  bool next = step_ && step_->stepped && !step_->opener();
  int64_t number = !next ? number_ : next_number_ >= 0 ? next_number_ : number_ + 1;
  now_.at_step.store(number, std::memory_order_relaxed);
  now_.doing.store(doing(), std::memory_order_relaxed);
  now_.stepped.store(step_ && step_->stepped, std::memory_order_relaxed);
  bool own = (step_ || first_) && !fetching_ && !in_model_ && !forward_ && !marked_ && !depth_ && optimizers_.empty() &&
             (!evaluation_.on || evaluation_.by_calls) && !framework_evaluates_;
  if (!own) {
    now_.own_since.store(0, std::memory_order_relaxed);
  } else if (!now_.own_since.load(std::memory_order_relaxed)) {
    now_.step.store(number, std::memory_order_relaxed);
    now_.epoch.store(epoch_, std::memory_order_relaxed);
    now_.own_since.store(t, std::memory_order_release);
  }
}

// Loader --------------------------------------------------------------------------------------------------------------

void StepRule::fetch_begins(int64_t t, const Pass* of) {
  if (stepped()) events_.ends(Stage::kBlock);
  // Whether the loader gives another batch or ends, this is where the step will have ended.
  if (of && step_ && !framework_evaluates_) {
    bool trains = of->trains && trained(*step_);
    if (trains || (inferring_ && step_->inference)) {
      if (!foreseen_) is_over();
      foreseen_ = true;
      foreseen_at_ = t;
    }
  }
  events_.begins(Stage::kFetch);
  fetching_ = true;
  publish(t);
}

void StepRule::fetched(const PassPtr& of, int64_t start, int64_t end, bool gradients, std::string_view facts) {
  bool by_hand = false;  // asked once: the program's own event stands for both of ours
  if (of->fetches == 0 && of->began) {
    if (start - of->ready <= kJoined) {
      start = of->began;
    } else {  // the program did something else between iter() and next(); both were waiting
      by_hand = events_.by_hand(Stage::kFetch);
      if (!by_hand) events_.write(Stage::kFetch, of->began, of->ready, {});
    }
    of->first = start;
  }
  ++of->fetches;
  if (!counts_ && gradients) {
    events_.write(Stage::kAhead, start, end, facts);
    return;
  }
  settle_calls(start, false);
  forward_ = teacher_ = marked_ = paused_ = 0;
  const bool training = (of->trains || (gradients && trains(of->loader).value_or(true))) && !framework_evaluates_;
  if (inferring_ && !framework_evaluates_) {
    if (step_) close(start);
    open(start, end, of, true);
  } else if (training) {
    training_fetch(of, start, end);
  } else {
    evaluation_fetch(of, start);
  }
  free_ = end;
  saw(end);
  Args args;
  args.text(facts);
  if (of->trains || inferring_) args.text(numbers());
  if (!by_hand) events_.write(Stage::kFetch, start, end, args.all());
  publish(end);
}

void StepRule::training_fetch(const PassPtr& of, int64_t start, int64_t end) {
  if (evaluation_.on) end_evaluation(evaluation_.over() ? evaluation_.over() : start);
  if (step_) {
    if (trained(*step_)) {
      bool is_known = of->trains || trains(of->loader).value_or(false) || step_->passes.empty();
      if (is_known || step_->has(of)) {
        close(start);
      } else if (!step_->next.of) {
        step_->next = {start, end, of};
      }
    } else if (!step_->backward && !step_->passes.empty() &&
               std::all_of(step_->passes.begin(), step_->passes.end(), [](const PassPtr& p) { return p->died; })) {
      take_back();
    }
  }
  if (!step_) {
    open(start, end, of);
  } else if (!step_->next.of && !step_->has(of)) {
    step_->passes.push_back(of);
  }
}

void StepRule::evaluation_fetch(const PassPtr& of, int64_t start) {
  if (evaluation_.on) {
    if (evaluation_.of == of || !evaluation_.over()) return;
    end_evaluation(evaluation_.over());
  }
  evaluation_ = {start, of, true, false};
}

void StepRule::loader_ended(const PassPtr& of, int64_t start, int64_t end) {
  of->ended = end;
  fetching_ = false;
  bool by_hand = events_.by_hand(Stage::kFetch);  // it has asked for one more, too, and writes no event of that
  if (!counts_ && !of->trains && !evaluation_.on) return;
  settle_calls(start, false);
  if (step_ && step_->inference) {
    if (step_->has(of)) close(start);
  } else if (framework_evaluates_) {
    // the framework says when it is over
  } else if (evaluation_.on && evaluation_.of == of) {
    // its last batch may still be in use: what comes next ends it
  } else if (of->trains || trains(of->loader).value_or(false)) {
    if (step_ && trained(*step_)) close(start);
    leftover_start_ = start;
    leftover_end_ = end;
  } else if (of->fetches) {
    if (step_) {
      if (step_->next.of == of) {
        step_->next = {};
      } else if (step_->passes.size() == 1 && step_->passes[0] == of && !step_->backward) {
        take_back();
      }
    }
    if (!by_hand) {  // else what learns may be known to the program alone; its own events tell
      learned(of->loader, false);
      int64_t from = of->first ? of->first : start;
      if (evaluation_.on) end_evaluation(evaluation_.over() ? evaluation_.over() : from);
      evaluation_ = {from, of, true, false};
      forward_ = teacher_ = 0;
    }
  }
  free_ = end;
  publish(end);
}

void StepRule::fetch_failed(const PassPtr& of, int64_t start, int64_t end, std::string_view error) {
  fetching_ = false;
  Args args;
  args.error(error);
  write(Stage::kFetch, of->fetches == 0 && of->began ? of->began : start, end, args.all());
}

// Calls of models -----------------------------------------------------------------------------------------------------

bool StepRule::knows(uintptr_t model) const {
  return std::any_of(models_.begin(), models_.end(), [&](const Model& each) { return each.is(model); });
}

void StepRule::know(uintptr_t model) {
  model_is_new_ = !knows(model);
  if (!model_is_new_) return;
  std::erase_if(models_, [&](const Model& each) { return each.at == model; });
  if (models_.size() == kMaxModels) models_.erase(models_.begin());
  models_.push_back({model, nullptr});
}

void StepRule::follow_model(uintptr_t model, std::shared_ptr<const std::atomic<bool>> gone) {
  for (Model& each : models_)
    if (each.is(model)) each.gone = gone;
}

bool StepRule::model_begins(int64_t t, bool gradients, uintptr_t model, bool evaluating) {
  model_is_new_ = false;
  if (in_model_++ || depth_ || fetching_) return false;
  call_start_ = 0;
  if (framework_evaluates_) return true;
  // A program that only infers may well leave gradients on.
  if (!gradients || (evaluating && may_infer())) {
    called_without_gradients(t, model, evaluating);
  } else {
    know(model);
    acting_call(t, model);
    called_with_gradients(t, evaluating);
  }
  publish(t);
  return true;
}

void StepRule::called_with_gradients(int64_t t, bool evaluating) {
  // Training goes on. A loader that has ended may have left its last batch to an evaluation with gradients on.
  if (synthetic_evaluation()) {
    end_evaluation(t);
  } else if (evaluation_.on && evaluation_.over() && !evaluating) {
    end_evaluation(evaluation_.over());
  }
  settle_calls(t, true);
  if (!teacher_ && !forward_ && helpers_ <= kFewCalls && follows_helpers(t)) teacher_ = helpers_start_;
  helpers_ = 0;
  if (ends_with_backward()) {
    int64_t begins = teacher_ ? teacher_ : t;
    close(begins);
    open(begins, begins, nullptr);
  }
  if (!optimizers_.empty() && backward_end_ > optimizers_.back().second)  // a closure is called again
    write(Stage::kOptimizer, backward_end_, t);
  if (!forward_ && !evaluation_.on) {
    forward_ = teacher_ ? teacher_ : t;
    events_.begins(Stage::kForward);
  }
}

// The steps of a sequence follow each other at once, and the parts of a network are called once each.
void StepRule::acting_call(int64_t t, uintptr_t model) {
  acting_call_ = t;
  if (!paused_) acting_model_ = model;
  if (!paused_ || model != acting_model_ || t - paused_ <= kLongBetween * longest_call_) return;
  acting_ = ++pauses_ > kFewCalls || acting_;
}

void StepRule::acting_call_ends(int64_t t) {
  longest_call_ = std::max(paused_ ? longest_call_ : 0, t - std::exchange(acting_call_, 0));
  paused_ = t;
  if (!acting_ || !forward_ || evaluation_.on || !optimizers_.empty()) return;
  events_.ends(Stage::kForward);
  write(Stage::kForward, forward_, t);
  if (!acting_since_) acting_since_ = forward_;
  if (step_) (step_->stepped ? step_->later : step_->seen).forward = true;
  forward_ = teacher_ = 0;
  forward_done_ = t;
}

void StepRule::model_ends(int64_t t) {
  if (--in_model_) return;
  if (acting_call_) acting_call_ends(t);
  if (call_start_) {
    if (step_ && step_->inference) {
      events_.ends(Stage::kForward);
      write(Stage::kForward, call_start_, t);
    } else {
      saw(t);
      helpers_end_ = t;
    }
    call_start_ = 0;
  }
  publish(t);
}

bool StepRule::may_infer() const {
  return !backwards_ && !transforms_ && !optimizer_seen.load(std::memory_order_relaxed);
}

void StepRule::called_without_gradients(int64_t t, uintptr_t model, bool evaluating) {
  call_start_ = t;
  if (inferring_ || may_infer()) {
    infer(t, model);
    return;
  }
  bool known = knows(model);
  // Experience is collected after an evaluation, too.
  if (synthetic_evaluation() && evaluation_.in_mode && rollouts_ && known && !evaluating) {
    end_evaluation(t);
    return;
  }
  if (evaluation_.on || forward_ || !counts_) return;
  // A step that ends with its backward has no further use for its batch.
  bool in_hand = step_ && !step_->stepped && !step_->next.of && !ends_with_backward() &&
                 (!step_->passes.empty() || step_->backward);
  if (known && evaluating) {
    begin_evaluation(t, true);
  } else if (in_hand) {
    if (!teacher_) teacher_ = t;
  } else if (!backwards_) {
    if (evaluating) {
      begin_evaluation(t, true);
    } else {
      rollouts_ = true;
      rollout_call(t);
      helper_call(t);
    }
  } else if (known) {
    if (rollouts_)
      helper_call(t);
    else
      begin_evaluation(t, false);
  } else {
    if (!calls_) calls_start_ = t;
    ++calls_;
  }
}

void StepRule::rollout_call(int64_t t) {
  int64_t pause = t - rollout_latest_;
  if (!rollout_ || (rollout_pace_ && pause > kSamePace * rollout_pace_)) {
    rollout_ = t;
    rollout_pace_ = 0;
  } else if (rollout_pace_ > kSamePace * pause) {
    rollout_ = rollout_latest_;
    rollout_pace_ = pause;
  } else {
    rollout_pace_ = std::max(rollout_pace_, pause);
  }
  rollout_latest_ = t;
}

// Calls in a row: what lies between them is short beside them.
bool StepRule::follows_helpers(int64_t t) const {
  return helpers_ && kShortBeside * (t - helpers_end_) <= helpers_end_ - helpers_start_;
}

void StepRule::helper_call(int64_t t) {
  if (!follows_helpers(t)) {
    helpers_ = 0;
    helpers_start_ = t;
  }
  ++helpers_;
}

// Models were called that do not train: helpers of the forward that follows, or an evaluation.
void StepRule::settle_calls(int64_t t, bool forward_follows) {
  if (!calls_) return;
  if (forward_follows && calls_ <= kFewCalls) {
    if (!teacher_) teacher_ = calls_start_;
  } else {
    evaluation_ = {calls_start_, nullptr, true, true};
    end_evaluation(t);
  }
  calls_ = 0;
}

void StepRule::infer(int64_t t, uintptr_t model) {
  counts_ = true;
  if (!inferring_) {
    inferring_ = true;
    if (evaluation_.on && evaluation_.of) {  // its batch came with gradients off
      Evaluation batch = evaluation_;
      evaluation_ = {};
      if (!step_) open(batch.start, free_, batch.of, true);
    } else if (step_ && !step_->passes.empty() && !step_->backward) {
      step_->inference = true;
      epoch_ = -1;
      epoch_pass_ = nullptr;
      first_ = 0;
    }
  }
  if (step_ && step_->passes.empty() && step_->inference) {
    if (model != first_model_ && ++other_calls_ > kManyCalls) first_model_ = model;
    if (model == first_model_) close(t);
  }
  if (!step_) {
    open(t, t, nullptr, true);
    first_model_ = model;
    other_calls_ = 0;
  }
  events_.begins(Stage::kForward);
}

// Compute -------------------------------------------------------------------------------------------------------------

bool StepRule::backward_begins(int64_t t) {
  if (depth_) {
    ++depth_;
    return false;
  }
  backward_called_ = true;
  begin_backward(t);
  return true;
}

void StepRule::begin_backward(int64_t t) {
  depth_ = 1;
  counts_ = true;
  ++backwards_;
  now_.trains.store(true, std::memory_order_relaxed);
  backward_start_ = t;
  settle_calls(t, true);
  if (synthetic_evaluation()) end_evaluation(t);
  if (ends_with_backward() && !forward_ && !marked_ && !teacher_) {  // of a model that is not seen
    close(backward_end_);
    open(free_, free_, nullptr);
  }
  const bool inferred = inferring_ && step_ && step_->inference;  // its forward is written
  inferring_ = false;
  if (!step_ || step_->next.of || evaluation_.on) step_of_backward(t);
  step_->inference = false;
  step_->seen.forward |= inferred;
  batch_trains(*step_);
  step_->backward = true;
  gradients_.clear();
  if (forward_) events_.ends(Stage::kForward);
  events_.begins(Stage::kBackward);
  int64_t begun = marked_ ? marked_ : forward_ ? forward_ : teacher_;
  Seen& seen = step_->stepped ? step_->later : step_->seen;
  if (begun && t > begun && forward_done_ < begun) {
    write(Stage::kForward, begun, t);
    seen.forward = true;
  } else if (!seen.forward && forward_done_ < std::max(step_->start, step_->last_end)) {
    seen.unseen = true;
    events_.forward_unseen();
  }
  marked_ = forward_ = teacher_ = paused_ = acting_since_ = 0;
  acting_ = std::exchange(pauses_, 0) > kFewCalls;
  publish(t);
}

void StepRule::batch_trains(Step& step) {
  for (const PassPtr& of : step.passes) {
    if (of->trains) continue;
    of->trains = true;
    learned(of->loader, true);
  }
}

std::optional<bool> StepRule::trains(int64_t loader) const {
  for (const auto& [each, it_trains] : loaders_)
    if (each == loader) return it_trains;
  return std::nullopt;
}

void StepRule::learned(int64_t loader, bool trains) {
  std::erase_if(loaders_, [&](const auto& each) { return each.first == loader; });
  if (loaders_.size() == kMaxLoaders) loaders_.erase(loaders_.begin());
  loaders_.emplace_back(loader, trains);
}

// Whether a batch trains shows only now.
void StepRule::step_of_backward(int64_t t) {
  if (evaluation_.on) {
    int64_t began = evaluation_.start;
    PassPtr of = evaluation_.of;
    bool trains = of && of->trains;
    if (!of || of->over() || (step_ && !step_->passes.empty() && !trains && step_->stepped)) {
      end_evaluation(of && of->over() ? of->over() : t);
    } else {  // its batches were fetched without gradients, but it trains
      evaluation_ = {};
      if (!step_ || step_->stepped) {
        if (step_) close(began);
        open(began, free_, of);
      } else if (!step_->has(of)) {
        step_->passes.push_back(of);
      }
    }
  }
  if (step_ && step_->next.of) {
    NextFetch next = step_->next;
    close(next.start);
    open(next.start, next.end, next.of);
  }
  if (!step_) open_without_fetch(t);
}

void StepRule::backward_ends(int64_t t, std::string_view error) {
  if (depth_ > 1) {
    --depth_;
    return;
  }
  depth_ = 0;
  events_.ends(Stage::kBackward);
  Args args;
  args.error(error);
  write(Stage::kBackward, backward_start_, t, args.all());
  free_ = backward_end_ = t;
  if (step_ && step_->last_end > backward_start_) {  // an optimizer in backward
    step_->last_end = t;
    foresee_end();
  }
  publish(t);
}

// Of the calls inside a transform the last one is its own; what comes before is a part of the function. Otherwise,
// gradients of which gradients are taken are a part of forward (a penalty, a force).
void StepRule::took_gradients(int64_t start, int64_t end, bool of_graph) {
  if (depth_) return;
  if (paused_) paused_ = end;
  if (transforms_) {
    transform_gradients_ = {start, end};
    return;
  }
  if (of_graph) return;
  // Nobody but the program itself can use them.
  if (no_optimizer.load(std::memory_order_relaxed) && !backward_called_ && !in_model_ && !fetching_ && !inferring_ &&
      !framework_evaluates_) {
    begin_backward(start);
    backward_ends(end);
    return;
  }
  gradients_.emplace_back(start, end);
  if (gradients_.size() > kMaxGradients) gradients_.erase(gradients_.begin());
}

// The function is called as soon as the transform is, and is over when gradients are taken.
void StepRule::transform_begins(int64_t t) {
  if (transforms_++ || in_model_ || depth_ || fetching_ || framework_evaluates_) return;
  called_with_gradients(t, false);
  publish(t);
}

void StepRule::transform_ends(int64_t t) {
  if (--transforms_) return;
  auto [start, end] = std::exchange(transform_gradients_, {});
  if (start && !in_model_) took_gradients(start, end);
  publish(t);
}

// An optimizer steps: the gradients taken since the batch came were its backward.
void StepRule::backward_by_gradients() {
  auto taken = std::move(gradients_);
  gradients_.clear();
  int64_t begun = marked_ ? marked_ : forward_ ? forward_ : teacher_;
  int64_t from = begun ? begun : free_;
  taken.erase(std::remove_if(taken.begin(), taken.end(), [&](const auto& each) { return each.first < from; }),
              taken.end());
  if (taken.empty() || (step_ && step_->backward && !step_->stepped)) return;
  inferring_ = false;
  if (!step_ || step_->next.of || evaluation_.on) step_of_backward(taken[0].first);
  batch_trains(*step_);
  ++backwards_;
  now_.trains.store(true, std::memory_order_relaxed);
  step_->backward = true;
  Seen& seen = step_->stepped ? step_->later : step_->seen;
  for (const auto& [start, end] : taken) {
    if (begun && start > begun) {
      write(Stage::kForward, begun, start);
      seen.forward = true;
    }
    write(Stage::kBackward, start, end);
    begun = end;
  }
  if (!seen.forward) {
    seen.unseen = true;
    events_.forward_unseen();
  }
  marked_ = forward_ = teacher_ = paused_ = acting_since_ = 0;
  acting_ = std::exchange(pauses_, 0) > kFewCalls;
  free_ = backward_end_ = begun;
}

// Before it there is no training: without a loader, the first step begins after it.
void StepRule::optimizer_made(int64_t t) {
  counts_ = true;
  if (backwards_) models_.clear();  // those of an earlier training may only help in this one
  if (inferring_) {
    if (step_ && step_->inference) close(last_);
    inferring_ = false;
  }
  if (step_ && step_->stepped && without_loader(*step_)) close(step_->last_end);  // another training
  if (!step_) {
    free_ = std::max(free_, t);
    fresh_ = true;
    forward_ = teacher_ = rollout_ = rollout_pace_ = 0;
  }
  publish(t);
}

// An optimizer step, or what stands around it (a gradient scaler).
void StepRule::optimizer_begins(uintptr_t key, int64_t t) {
  if (!gradients_.empty()) backward_by_gradients();
  settle_calls(t, true);
  if (synthetic_evaluation()) end_evaluation(t);
  // One that raised did not say when it ended.
  optimizers_.erase(
      std::remove_if(optimizers_.begin(), optimizers_.end(), [&](const auto& each) { return each.first == key; }),
      optimizers_.end());
  optimizers_.emplace_back(key, t);
  if (!step_) {
    open_without_fetch(t);
  } else if ((step_->passes.empty() || step_->passes[0]->died) && without_loader(*step_)) {
    auto before = std::find_if(step_->stepped_by.begin(), step_->stepped_by.end(),
                               [&](const auto& each) { return each.first == key; });
    if (before != step_->stepped_by.end() && before->second != backwards_) {
      int64_t end = step_->last_end;
      Seen later = step_->later;
      close(end);
      Step& next = open(end, end, nullptr);
      next.backward = true;
      next.seen = later;
    }
  }
  step_->inference = false;
  if (step_->later.forward) step_->seen.forward = true;
  if (step_->later.unseen) step_->seen.unseen = true;
  step_->later = {};
  if (!evaluation_.on && !step_->next.of) batch_trains(*step_);
  auto at = std::find_if(step_->stepped_by.begin(), step_->stepped_by.end(),
                         [&](const auto& each) { return each.first == key; });
  if (at == step_->stepped_by.end()) {
    step_->stepped_by.emplace_back(key, backwards_);
  } else {
    at->second = backwards_;
  }
  events_.begins(Stage::kOptimizer);
  if (!depth_) free_ = t;
  marked_ = forward_ = teacher_ = helpers_ = 0;
  publish(t);
}

// Of a closure's forward and backward inside, only the rest is the optimizer's.
void StepRule::optimizer_ends(uintptr_t key, int64_t t, bool skipped) {
  int64_t start = 0;
  while (!optimizers_.empty()) {
    auto [at, began] = optimizers_.back();
    optimizers_.pop_back();
    start = began;
    if (at == key) break;
  }
  if (!start) return;
  events_.ends(Stage::kOptimizer);
  if (!depth_) {
    start = std::max(start, backward_end_);
    free_ = t;
  }
  write(Stage::kOptimizer, start, t, skipped ? ",\"skipped\":1" : "");
  if (step_) {
    step_->stepped = true;
    step_->last_end = t;
    ++step_->optimizer_steps;
    foresee_end();
  }
  forward_ = teacher_ = 0;
  publish(t);
}

// Without a loader it is certain that a step is over only when the optimizer of the next one steps. It most likely ends
// after as many optimizer steps as the one before; the first one, after that of the only optimizer there is.
void StepRule::foresee_end() {
  if (depth_ || !optimizers_.empty() || !without_loader(*step_)) return;
  bool only = optimizers_made.load(std::memory_order_relaxed) == 1;
  if (step_->optimizer_steps != (usual_ ? usual_ : only) || foreseen_) return;
  is_over();
  foreseen_ = true;
}

void StepRule::is_over() {
  ++over_;
  over_number_ = number_;
}

void StepRule::interrupt(int64_t start, int64_t end) {
  saw(end);
  moved(end);
  if ((!step_ || step_->stepped || !step_->backward) && free_ >= start - kJoined) free_ = std::max(free_, end);
}

// Frameworks ----------------------------------------------------------------------------------------------------------

void StepRule::forward_begins(int64_t t) {
  if (!marked_ && !depth_) marked_ = t;
  publish(t);
}

void StepRule::forward_ends(int64_t t) {
  if (marked_) {
    write(Stage::kForward, marked_, t);
    forward_done_ = t;
    if (step_) (step_->stepped ? step_->later : step_->seen).forward = true;
  }
  marked_ = forward_ = teacher_ = 0;
  publish(t);
}

void StepRule::step_ends(int64_t t) {
  if (step_) close(t);
  publish(t);
}

// A step, unless the gradients of the batch were only accumulated.
void StepRule::batch_ends(int64_t t) {
  if (stepped()) step_ends(t);
}

void StepRule::resume(int64_t number, int64_t epoch) {
  if (step_) return;
  number_ = number;
  epoch_ = epoch ? epoch - 1 : -1;
}

// The program counts its steps and epochs itself; -1: it does not say. Once its optimizer has stepped, a step is what
// the program is done with, and the numbers are those of the next one. A program that numbers a step only at its end
// does so from the first one on.
void StepRule::numbered(int64_t step, int64_t epoch) {
  const bool open = step_ && !step_->stepped;
  if (step >= 0 && step != number_) (open || !step_ || !numbered_ ? number_ : next_number_) = step;
  if (epoch >= 0 && epoch != epoch_) (open ? epoch_ : next_epoch_) = epoch;
  numbered_ = numbered_ || step >= 0;
}

void StepRule::evaluation_begins(int64_t t) {
  settle_calls(t, false);
  if (evaluation_.on) end_evaluation(t);
  if (stepped()) close(t);
  evaluation_ = {t, nullptr, true, false};
  framework_evaluates_ = true;
  publish(t);
}

void StepRule::evaluation_ends(int64_t t) {
  if (!framework_evaluates_) return;
  framework_evaluates_ = false;
  end_evaluation(t);
  publish(t);
}

// Opening and closing -------------------------------------------------------------------------------------------------

// Its batch has been used; without an optimizer, the program itself does what follows backward.
bool StepRule::trained(const Step& step) const {
  return step.stepped || (step.backward && no_optimizer.load(std::memory_order_relaxed));
}

// With neither a loader nor an optimizer of torch's, a step is a backward and what the program does with it.
bool StepRule::ends_with_backward() const {
  return step_ && step_->backward && step_->passes.empty() && !step_->stepped && !evaluation_.on &&
         no_optimizer.load(std::memory_order_relaxed);
}

// No loader began it, or one that gave a single batch for all that follows.
bool StepRule::without_loader(const Step& step) {
  const Pass* opener = step.opener();
  return !opener || (opener->died && !opener->ended && opener->died < step.last_end);
}

StepRule::Step& StepRule::open(int64_t start, int64_t body, const PassPtr& of, bool inference) {
  Step& s = storage_;
  s.start = std::max(start, resumed_);
  s.body = std::max(body, resumed_);
  s.last_end = s.optimizer_steps = 0;
  s.passes.clear();
  if (of) s.passes.push_back(of);
  s.stepped_by.clear();
  s.next = {};
  s.backward = s.stepped = false;
  s.inference = inference;
  s.began_training = false;
  s.began_epoch = -1;
  s.seen = s.later = {};
  step_ = &s;
  foreseen_ = false;
  foreseen_at_ = 0;
  now_.own_since.store(0, std::memory_order_relaxed);
  events_.begins(Stage::kBlock);
  leftover_end_ = 0;
  fresh_ = false;
  if (inference) return s;
  s.began_training = !first_;
  if (!first_) first_ = s.start;
  if (of && of != epoch_pass_ && (!epoch_pass_ || epoch_pass_->over() || epoch_pass_->loader == of->loader)) {
    end_epoch();
    s.began_epoch = ++epoch_;
    epoch_start_ = start;
    epoch_pass_ = of;
  }
  if (next_epoch_ >= 0) epoch_ = std::exchange(next_epoch_, -1);
  return s;
}

// A step whose batch was in hand: the last of a loader that looks ahead, or one without any.
StepRule::Step& StepRule::open_without_fetch(int64_t t) {
  if (leftover_end_) {
    int64_t start = leftover_start_, end = leftover_end_;
    events_.write(Stage::kFetch, start, end, {});
    return open(start, end, nullptr);
  }
  int64_t forward = marked_ ? marked_ : forward_ ? forward_ : teacher_ ? teacher_ : t;
  if (acting_since_) forward = acting_since_;
  if (rollout_pace_ && forward - rollout_latest_ <= kSamePace * rollout_pace_) forward = rollout_;
  int64_t from = fresh_ ? forward : free_ ? free_ : t;
  return open(from, from, nullptr);
}

// The open step was none: its batch was only looked at.
void StepRule::take_back() {
  if (step_->began_training) first_ = 0;
  if (step_->began_epoch >= 0) {
    epoch_pass_ = nullptr;
    if (epoch_ == step_->began_epoch)
      --epoch_;
    else
      next_epoch_ = epoch_;  // it is the program that counts
  }
  step_ = nullptr;
}

// One that begins without a fetch ends with its optimizer.
void StepRule::close(int64_t end) {
  Step& step = *step_;
  const Pass* opener = step.opener();
  if (!step.inference && (!opener || opener->died)) {
    if (without_loader(step)) {
      usual_ = step.optimizer_steps;
      if (step.last_end) end = std::min(end, step.last_end);
    } else if (opener && !opener->ended) {
      end = std::max(step.last_end, std::min(end, opener->died));
    }
  }
  if (foreseen_at_) end = std::min(end, std::exchange(foreseen_at_, 0));
  step_end_ = end;
  saw(end);
  Args args;
  args.add("step", number_);
  if (epoch_ >= 0 && !step.inference) args.add("epoch", epoch_);
  if (step.seen.unseen && !step.inference) args.add("forward_unseen", 1);
  if (step.inference) args.add("inference", 1);
  events_.write(Stage::kBlock, step.body, std::max(end, step.body), args.all());
  if (!foreseen_) is_over();
  foreseen_ = false;
  number_ = next_number_ >= 0 ? std::exchange(next_number_, -1) : number_ + 1;
  step_ = nullptr;
  now_.own_since.store(0, std::memory_order_relaxed);
  now_.steps.fetch_add(1, std::memory_order_relaxed);
}

void StepRule::begin_evaluation(int64_t t, bool in_mode) { evaluation_ = {t, nullptr, true, true, in_mode}; }

void StepRule::end_evaluation(int64_t end) {
  if (!evaluation_.on) return;
  int64_t start = evaluation_.start;
  // A test after training says nothing of what the program does then.
  int64_t calls = helpers_end_ - start;
  if (evaluation_.by_calls && calls > 0 && end - helpers_end_ > kLongAfter * calls) end = helpers_end_;
  evaluation_ = {};
  saw(end);
  Args args;
  if (epoch_ >= 0) args.add("epoch", epoch_);
  events_.write(Stage::kEvaluate, start, std::max(start, end), args.all());
  free_ = std::max(free_, end);
}

void StepRule::end_epoch(std::string_view error) {
  if (!epoch_pass_) return;
  int64_t end = error.empty() ? std::max({epoch_pass_->over(), step_end_, epoch_start_}) : last_;
  epoch_pass_ = nullptr;
  saw(end);
  Args args;
  args.add("epoch", epoch_);
  args.error(error);
  events_.write(Stage::kEpoch, epoch_start_, end, args.all());
}

void StepRule::finish(int64_t at, std::string_view error) {
  Args failed;
  failed.error(error);
  settle_calls(last_, false);
  if (evaluation_.on) {
    int64_t over = evaluation_.over();
    end_evaluation(over ? over : error.empty() ? std::max(last_, free_) : at);
  }
  if (step_ && step_->inference) {
    close(last_);
  } else if (step_ && trained(*step_) && (error.empty() || !step_->next.of)) {
    const Pass* opener = step_->opener();
    close(opener && opener->died ? opener->died : step_->last_end ? step_->last_end : last_);
  } else if (step_ && !error.empty() && !depth_ && (marked_ || forward_)) {
    write(Stage::kForward, marked_ ? marked_ : forward_, at, failed.all());
  }
  step_ = nullptr;
  end_epoch(error);
  if (first_) events_.write(Stage::kTrain, first_, std::max(last_, first_), failed.all());
  first_ = 0;
  publish(at);
}

}  // namespace dft
