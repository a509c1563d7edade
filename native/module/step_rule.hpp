// The step rule: from the boundaries that a training program crosses to steps, epochs, evaluations and their stages.
//
// A step ends at the first training fetch, or the loader's end, after an optimizer step. Several fetches before an
// optimizer step are accumulation; several optimizers, and repeated calls of one, belong to the open step. Without a
// loader a step ends when an optimizer that has already stepped steps again after a new backward. In a program without
// a torch optimizer it ends at the first training fetch after a backward or, if there is no loader either, where the
// next forward begins. A fetch with gradients off, or a loader that ends without any backward, is evaluation. Of nested
// spans (a closure given to `optimizer.step`, an optimizer inside backward) the innermost counts.
//
// Forward begins with the outermost call of a model with gradients on and ends where backward begins. A model called
// with gradients off is evaluation, except that
//   - a model that does not train and is called while a batch is in hand, or a few times before forward, is a teacher
//     or a target network: forward begins with its call;
//   - a model in training mode that was already called this way before the first backward collects experience, which
//     is the program's own code. Evenly spaced calls, followed by the first forward at the same pace, belong to the
//     first step; a single call may only have probed shapes. A few in a row, directly followed by forward, made its
//     targets or inputs: forward begins with them;
//   - before any optimizer and any backward it is inference: a step for each batch, or for each call of the same model.
//     There a model in evaluation mode may have gradients on.
// An evaluation that only calls tell of ends with the last of them if what follows takes many times as long. A model
// that is called again and again before one backward, with long pauses, acts in an environment: each call is a forward
// of its own, and the pauses are the program's own code. A function whose gradients `torch.func` takes counts as a
// model, called with gradients on.
//
// Gradients that a program takes without `backward` are a step's backward if an optimizer uses them. In a program that
// has no torch optimizer and never calls `backward` they always are.
//
// The rule knows nothing of Python. It belongs to one thread; what others may look at is in `Now`. All times are those
// of the trace's clock, in ns; 0 means never.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dft {

enum class Stage : uint8_t { kFetch, kAhead, kBlock, kForward, kBackward, kOptimizer, kTrain, kEpoch, kEvaluate };
inline constexpr size_t kStages = 9;

// What the rule says. `args` is JSON text, `,"step":3`.
class StageEvents {
 public:
  virtual ~StageEvents() = default;
  virtual void write(Stage stage, int64_t start, int64_t end, std::string_view args) = 0;
  virtual void begins(Stage stage) = 0;
  virtual void ends(Stage stage) = 0;
  virtual bool by_hand(Stage stage) = 0;  // the program annotates it itself
  virtual void forward_unseen() = 0;      // a backward came without the call of a model
};

// One pass over a loader: from iter(loader) to its last batch, or to the moment it is dropped. It trains if a backward
// follows one of its batches.
struct Pass {
  int64_t loader = 0;              // its number
  int64_t began = 0, ready = 0;    // iter(loader) was called, and had returned
  int64_t restarts = 0;            // of persistent workers: which of their passes this is
  int64_t fetches = 0, first = 0;  // the start of the first wait, iter() included
  int64_t ended = 0;               // when it had no more batches
  int64_t died = 0;                // when its iterator was no longer referenced
  bool trains = false;
  // 0 if it may continue. A loader that looks ahead is dropped after its last batch.
  int64_t over() const { return std::max(ended, died); }
};
using PassPtr = std::shared_ptr<Pass>;

// What a training thread is in the middle of. Between: there is no open step.
enum class Doing : uint8_t { kNothing, kBetween, kFetch, kForward, kBackward, kOptimizer, kOwnCode, kEvaluate, kInfer };

// What other threads may know while the program runs.
struct Now {
  std::atomic<int64_t> own_since{0};  // since when the program's own code has been running, in a step or between them
  std::atomic<int64_t> step{-1}, epoch{-1};

  // For the hang watch. Every boundary is a movement.
  std::atomic<int64_t> moved{0};    // the latest
  std::atomic<int64_t> longest{0};  // between two of them, since this was last set to 0
  std::atomic<int64_t> at_step{0};  // the open step, or the next one
  std::atomic<int64_t> steps{0};    // that have ended
  std::atomic<Doing> doing{Doing::kNothing};
  std::atomic<bool> trains{false}, stepped{false};  // a backward was seen; the open step's optimizer is through
};

class StepRule {
 public:
  // `now` is written by the rule, and may be read by anyone.
  StepRule(StageEvents& events, Now& now, bool main_thread) : events_(events), now_(now), counts_(main_thread) {}

  // Of the whole process.
  static inline std::atomic<bool> no_optimizer{false};    // it is known to have none
  static inline std::atomic<bool> optimizer_seen{false};  // one has been made
  static inline std::atomic<int64_t> optimizers_made{0};  // as far as we saw

  // Loader
  void fetch_begins(int64_t t, const Pass* of = nullptr);  // the pass, if it is known which it is
  void fetched(const PassPtr& of, int64_t start, int64_t end, bool gradients, std::string_view facts);
  void loader_ended(const PassPtr& of, int64_t start, int64_t end);
  void fetch_failed(const PassPtr& of, int64_t start, int64_t end, std::string_view error);

  // The outermost calls of models; `model` tells them apart, `evaluating`: it is in evaluation mode. Returns whether it
  // was outermost.
  bool model_begins(int64_t t, bool gradients, uintptr_t model, bool evaluating);
  void model_ends(int64_t t);
  // Whether the latest call was of a model with gradients on that is new to the rule. Once it is gone, another may get
  // its address: `gone` is set then.
  bool model_is_new() const { return model_is_new_; }
  void follow_model(uintptr_t model, std::shared_ptr<const std::atomic<bool>> gone);

  // Compute. backward_begins returns whether it is the outermost: gradient checkpointing calls backward in backward.
  bool backward_begins(int64_t t);
  void backward_ends(int64_t t, std::string_view error = {});
  void took_gradients(int64_t start, int64_t end,
                      bool of_graph = false);  // torch.autograd.grad; a graph of them is kept
  void transform_begins(int64_t t);            // torch.func.grad and the like
  void transform_ends(int64_t t);
  void optimizer_made(int64_t t);
  void optimizer_begins(uintptr_t key, int64_t t);
  void optimizer_ends(uintptr_t key, int64_t t, bool skipped);
  void interrupt(int64_t start, int64_t end);  // something else took this time: a checkpoint

  // Frameworks that mark their phases: from then on their marks count.
  void forward_begins(int64_t t);
  void forward_ends(int64_t t);
  void step_ends(int64_t t);
  void batch_ends(int64_t t);
  void resume(int64_t number, int64_t epoch);
  void numbered(int64_t step, int64_t epoch);  // by the program itself, `ai.update(step=)`
  void evaluation_begins(int64_t t);
  void evaluation_ends(int64_t t);

  // The program, or the recording, ends: close what is open, and mark it where a failure is the reason.
  void finish(int64_t at, std::string_view error);

  // Other events of this thread: the number of their step, as JSON text.
  std::string numbers() const;
  void saw(int64_t end) { last_ = std::max(last_, end); }
  void moved(int64_t t);

  // How many steps are over, and the number of the latest. The events of a step are written once it is certain where it
  // ended, which may be later; this is known at its end, for those who act on it.
  int64_t over() const { return over_; }
  int64_t over_number() const { return over_number_; }
  void resumes(int64_t t) { resumed_ = t; }  // what they did took until now, and is no part of a step

  bool fetching() const { return fetching_; }
  void fetching(bool on) { fetching_ = on; }
  bool in_backward() const { return depth_ > 0; }
  int64_t backwards() const { return backwards_; }
  bool stepped() const { return step_ && step_->stepped; }

 private:
  struct Model {
    uintptr_t at;
    std::shared_ptr<const std::atomic<bool>> gone;  // null if nobody knows
    bool is(uintptr_t model) const { return at == model && !(gone && gone->load(std::memory_order_relaxed)); }
  };
  struct Seen {
    bool forward = false, unseen = false;
  };
  struct NextFetch {
    int64_t start, end;
    PassPtr of;
  };
  struct Step {
    int64_t start = 0, body = 0, last_end = 0;  // the end of its latest optimizer step
    int64_t optimizer_steps = 0;
    std::vector<PassPtr> passes;
    std::vector<std::pair<uintptr_t, int64_t>> stepped_by;  // optimizer -> how many backwards there had been
    NextFetch next;  // the first fetch from a loader of which it is not known whether it trains; `of` is null without
    bool backward = false, stepped = false, inference = false;
    bool began_training = false;
    int64_t began_epoch = -1;
    Seen seen, later;  // of its forward; what follows an optimizer step may turn out to be another step's
    Pass* opener() const { return passes.empty() ? nullptr : passes[0].get(); }
    bool has(const PassPtr& of) const { return std::find(passes.begin(), passes.end(), of) != passes.end(); }
  };
  struct Evaluation {
    int64_t start = 0;
    PassPtr of;  // null if calls of a model, or a framework, tell of it
    bool on = false, by_calls = false;
    bool in_mode = false;  // its first call was of a model in evaluation mode
    int64_t over() const { return of ? of->over() : 0; }
  };

  void write(Stage stage, int64_t start, int64_t end, std::string_view args = {});
  bool trained(const Step& step) const;
  bool ends_with_backward() const;
  static bool without_loader(const Step& step);
  void training_fetch(const PassPtr& of, int64_t start, int64_t end);
  void evaluation_fetch(const PassPtr& of, int64_t start);
  void batch_trains(Step& step);
  std::optional<bool> trains(int64_t loader) const;
  void learned(int64_t loader, bool trains);
  void step_of_backward(int64_t t);
  void backward_by_gradients();
  void begin_backward(int64_t t);
  void called_with_gradients(int64_t t, bool evaluating);
  void called_without_gradients(int64_t t, uintptr_t model, bool evaluating);
  void infer(int64_t t, uintptr_t model);
  bool may_infer() const;
  void settle_calls(int64_t t, bool forward_follows);
  void rollout_call(int64_t t);
  void helper_call(int64_t t);
  void acting_call(int64_t t, uintptr_t model);
  void acting_call_ends(int64_t t);
  bool follows_helpers(int64_t t) const;
  void begin_evaluation(int64_t t, bool in_mode);
  void end_evaluation(int64_t end);
  Step& open(int64_t start, int64_t body, const PassPtr& of, bool inference = false);
  Step& open_without_fetch(int64_t t);
  void close(int64_t end);
  void take_back();
  void end_epoch(std::string_view error = {});
  bool knows(uintptr_t model) const;
  void know(uintptr_t model);
  bool synthetic_evaluation() const { return evaluation_.on && evaluation_.by_calls; }
  void publish(int64_t t);
  Doing doing() const;
  void foresee_end();
  void is_over();

  StageEvents& events_;
  Now& now_;
  Step storage_;
  Step* step_ = nullptr;
  int64_t number_ = 0;                          // of the open step, or the next one
  int64_t next_number_ = -1, next_epoch_ = -1;  // given by the program for the step after this one
  bool numbered_ = false;
  // How many steps are over as far as is known, and the number of the latest; `foreseen_`: the open one is among
  // them.
  int64_t over_ = 0, over_number_ = -1;
  bool foreseen_ = false;
  int64_t foreseen_at_ = 0, resumed_ = 0;
  int64_t usual_ = 0;  // optimizer steps of the latest step without a loader
  int64_t epoch_ = -1, epoch_start_ = 0;
  PassPtr epoch_pass_;
  Evaluation evaluation_;
  std::vector<std::pair<int64_t, bool>> loaders_;  // the latest, and whether they train
  int64_t free_ = 0;                               // since when the thread may be at its next step
  int64_t last_ = 0;                               // the end of the latest event
  int64_t first_ = 0;                              // the start of the first training step
  int64_t step_end_ = 0;                           // of the latest step
  // A thread that is not the main one and has not trained only loads ahead for another.
  bool counts_;
  bool fresh_ = true;  // no step since the optimizer was made: what came before is not its
  int64_t backwards_ = 0, depth_ = 0, backward_start_ = 0, backward_end_ = 0;
  std::vector<std::pair<uintptr_t, int64_t>> optimizers_;  // that are stepping: key and start
  int64_t leftover_start_ = 0, leftover_end_ = 0;          // the last wait of a loader that has ended
  std::vector<std::pair<int64_t, int64_t>> gradients_;     // calls of autograd.grad that may turn out to be a backward
  std::pair<int64_t, int64_t> transform_gradients_;        // the latest call of it inside a transform
  int64_t transforms_ = 0;                                 // of torch.func that are running
  int64_t marked_ = 0, forward_done_ = 0;                  // forward as a framework reports it
  int64_t forward_ = 0;                                    // the first call of a model with gradients on
  int64_t teacher_ = 0;                                    // and of one that only helps
  int64_t calls_start_ = 0, calls_ = 0;                    // of models that do not train, meaning not known yet
  int64_t call_start_ = 0;
  int64_t helpers_ = 0, helpers_start_ = 0, helpers_end_ = 0;    // calls in a row that may help the forward after them
  int64_t rollout_ = 0, rollout_latest_ = 0, rollout_pace_ = 0;  // since the optimizer was made: its first call
  int64_t paused_ = 0;  // since the latest call with gradients on, in this forward; 0 before one
  int64_t pauses_ = 0;  // long ones between such calls since the last backward
  int64_t acting_call_ = 0, longest_call_ = 0;  // such a call that is running, and how long they take
  int64_t acting_since_ = 0;                    // the first forward of its own since the last backward
  uintptr_t acting_model_ = 0;                  // that was called first since the last backward
  bool acting_ = false;
  int in_model_ = 0;
  bool fetching_ = false, framework_evaluates_ = false, rollouts_ = false, inferring_ = false;
  bool backward_called_ = false;
  uintptr_t first_model_ = 0;  // of the open step of an inference without a loader
  int64_t other_calls_ = 0;    // of other models since
  std::vector<Model> models_;  // that were called with gradients on
  bool model_is_new_ = false;
};

}  // namespace dft
