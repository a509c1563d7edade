// The step rule without Python: boundaries in, events out. Times are small numbers; an event is written as
// `name start-end args`.
#include "module/step_rule.hpp"

#include <memory>
#include <string>
#include <vector>

#include "check.hpp"

namespace {

using dft::Pass;
using dft::PassPtr;
using dft::Stage;

constexpr const char* kNames[] = {"fetch",     "ahead", "block", "forward", "backward",
                                  "optimizer", "train", "epoch", "evaluate"};

struct Written : dft::StageEvents {
  std::vector<std::string> all;
  int unseen = 0;
  void write(Stage stage, int64_t start, int64_t end, std::string_view args) override {
    all.push_back(std::string(kNames[size_t(stage)]) + " " + std::to_string(start) + "-" + std::to_string(end) +
                  std::string(args));
  }
  void begins(Stage) override {}
  void ends(Stage) override {}
  bool by_hand(Stage) override { return false; }
  void forward_unseen() override { ++unseen; }

  std::string of(std::string_view name) const {
    std::string found;
    for (const std::string& each : all)
      if (each.starts_with(std::string(name) + " "))
        found += (found.empty() ? "" : "; ") + each.substr(name.size() + 1);
    return found;
  }
};

struct Program {
  Written events;
  dft::Now now;
  dft::StepRule rule{events, now, true};
  uintptr_t optimizer = 7, model = 1, teacher = 2;

  Program() {
    dft::StepRule::optimizer_seen = false;
    dft::StepRule::optimizers_made = 0;
  }

  void made(int64_t t) {
    dft::StepRule::optimizer_seen = true;
    ++dft::StepRule::optimizers_made;
    rule.optimizer_made(t);
  }
  void call(int64_t start, int64_t end, bool gradients, uintptr_t which, bool evaluating = false) {
    rule.model_begins(start, gradients, which, evaluating);
    rule.model_ends(end);
  }
  void fetch(const PassPtr& of, int64_t start, int64_t end, bool gradients = true) {
    rule.fetch_begins(start, of.get());
    rule.fetching(false);
    rule.fetched(of, start, end, gradients, "");
  }
  // A model call at t, backward at t+2 .. t+3, the optimizer at t+4 .. t+5.
  void train(int64_t t, bool with_model = true) {
    if (with_model) call(t, t + 1, true, model);
    rule.backward_begins(t + 2);
    rule.backward_ends(t + 3);
    rule.optimizer_begins(optimizer, t + 4);
    rule.optimizer_ends(optimizer, t + 5, false);
  }
};

PassPtr loader(int64_t which) {
  auto of = std::make_shared<Pass>();
  of->loader = which;
  return of;
}

}  // namespace

TEST(forward_is_from_the_model_to_backward_and_what_is_before_it_is_nobodys) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 10, 20);
  p.train(30);
  p.fetch(of, 40, 50);
  p.train(60);
  p.rule.loader_ended(of, 70, 71);
  p.rule.finish(80, "");
  CHECK_EQ(p.events.of("forward"), "30-32,\"step\":0,\"epoch\":0; 60-62,\"step\":1,\"epoch\":0");
  CHECK_EQ(p.events.of("block"), "20-40,\"step\":0,\"epoch\":0; 50-70,\"step\":1,\"epoch\":0");
  CHECK_EQ(p.events.of("epoch"), "10-71,\"epoch\":0");
  CHECK_EQ(p.events.of("train"), "10-71");  // it contains its epochs
}

TEST(a_look_at_batches_is_no_epoch) {
  Program p;
  p.made(1);
  PassPtr first = loader(1), look = loader(2), second = loader(3), last = loader(4);
  look->began = look->ready = 50;
  last->began = last->ready = 120;
  p.fetch(first, 10, 20);
  p.train(30);
  p.rule.loader_ended(first, 40, 41);
  p.fetch(look, 50, 60);  // with gradients on, as those that train
  p.rule.loader_ended(look, 70, 71);
  p.fetch(second, 80, 90);
  p.train(100);
  p.rule.loader_ended(second, 110, 111);
  p.fetch(last, 120, 130);
  p.rule.loader_ended(last, 140, 141);
  p.rule.finish(150, "");
  CHECK_EQ(p.events.of("block"), "20-40,\"step\":0,\"epoch\":0; 90-110,\"step\":1,\"epoch\":1");
  CHECK_EQ(p.events.of("evaluate"), "50-71,\"epoch\":0; 120-141,\"epoch\":1");
  CHECK_EQ(p.events.of("epoch"), "10-41,\"epoch\":0; 80-111,\"epoch\":1");
}

TEST(training_begins_after_a_look_at_its_batches) {
  Program p;
  p.made(1);
  PassPtr look = loader(1), of = loader(1);
  p.fetch(look, 10, 20);
  look->died = 25;
  p.fetch(of, 30, 40);
  p.train(50);
  p.rule.loader_ended(of, 60, 61);
  p.rule.finish(70, "");
  CHECK_EQ(p.events.of("block"), "40-60,\"step\":0,\"epoch\":0");
  CHECK_EQ(p.events.of("epoch"), "30-61,\"epoch\":0");
  CHECK_EQ(p.events.of("train"), "30-61");
}

TEST(a_program_that_counts_its_epochs_may_look_at_batches) {
  Program p;
  p.made(1);
  PassPtr look = loader(1), of = loader(2);
  p.fetch(look, 10, 20);
  p.rule.numbered(-1, 5);
  p.rule.loader_ended(look, 30, 31);
  p.fetch(of, 40, 50);
  p.train(60);
  p.rule.loader_ended(of, 70, 71);
  p.rule.finish(80, "");
  CHECK_EQ(p.events.of("block"), "50-70,\"step\":0,\"epoch\":5");
}

TEST(the_program_may_number_its_steps_itself) {
  Program once;  // a resumed training says where it goes on
  once.made(1);
  once.rule.numbered(50, 3);
  for (int64_t t : {100, 200, 300}) once.train(t);
  once.rule.finish(400, "");
  CHECK_EQ(once.events.of("block"),
           "100-105,\"step\":50,\"epoch\":3; 105-205,\"step\":51,\"epoch\":3; 205-305,\"step\":52,\"epoch\":3");
  Program before;  // each at its beginning, when the one before has stepped and is still open
  before.made(1);
  for (int64_t t : {100, 200, 300}) {
    before.rule.numbered(t, -1);
    before.train(t);
  }
  before.rule.finish(400, "");
  CHECK_EQ(before.events.of("block"), "100-105,\"step\":100; 105-205,\"step\":200; 205-305,\"step\":300");
  Program after;  // each at its end
  after.made(1);
  for (int64_t i : {0, 1, 2}) {
    after.train(100 * (i + 1));
    after.rule.numbered(70 + i, -1);
  }
  after.rule.finish(400, "");
  CHECK_EQ(after.events.of("block"), "100-105,\"step\":70; 105-205,\"step\":71; 205-305,\"step\":72");
}

TEST(without_a_loader_steps_go_from_optimizer_to_optimizer) {
  Program p;
  p.made(1);
  for (int64_t t : {100, 200, 300}) p.train(t);
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("block"), "100-105,\"step\":0; 105-205,\"step\":1; 205-305,\"step\":2");
  CHECK_EQ(p.events.of("forward"), "100-102; 200-202; 300-302");
}

TEST(a_second_training_begins_a_step_of_its_own) {
  Program p;
  p.made(1);
  p.train(100);
  p.train(200);
  p.made(1000);
  p.optimizer = 8;
  p.train(1100);
  p.train(1200);
  p.rule.finish(1300, "");
  CHECK_EQ(p.events.of("block"), "100-105,\"step\":0; 105-205,\"step\":1; 1100-1105,\"step\":2; 1105-1205,\"step\":3");
}

TEST(a_backward_without_a_model_is_said_on_its_step) {
  Program p;
  p.made(1);
  p.train(100);
  p.train(200, false);
  p.train(300);
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("block"), "100-105,\"step\":0; 105-205,\"step\":1,\"forward_unseen\":1; 205-305,\"step\":2");
  CHECK_EQ(p.events.of("forward"), "100-102; 300-302");
  CHECK_EQ(p.events.unseen, 1);
}

TEST(calls_without_gradients_between_steps_are_evaluation_until_training_goes_on) {
  Program p;
  p.made(1);
  p.train(100);
  p.call(120, 130, false, p.model, true);
  p.call(140, 150, false, p.model, true);
  p.train(200);
  p.rule.finish(300, "");
  CHECK_EQ(p.events.of("evaluate"), "120-200");
  CHECK_EQ(p.events.of("forward"), "100-102; 200-202");
}

TEST(what_takes_many_times_as_long_as_a_test_before_it_is_no_part_of_it) {
  Program p;
  p.made(1);
  for (int64_t t : {1000, 2000}) {  // the next fold is prepared in between
    p.train(t);
    p.call(t + 20, t + 25, false, p.model);
    CHECK_EQ(p.now.own_since.load(), t + 25);
  }
  p.train(3000);
  p.rule.finish(3100, "");
  CHECK_EQ(p.events.of("evaluate"), "1020-1025; 2020-2025");
  CHECK_EQ(p.events.of("forward"), "1000-1002; 2000-2002; 3000-3002");
}

TEST(without_a_loader_training_goes_on_after_an_evaluation_that_has_one) {
  Program p;
  p.made(1);
  p.train(10);
  PassPtr of = loader(1);
  p.fetch(of, 20, 21, false);
  p.call(22, 23, false, p.model, true);
  p.rule.loader_ended(of, 24, 25);
  p.train(30);
  p.rule.finish(40, "");
  CHECK_EQ(p.events.of("evaluate"), "20-25");
  CHECK_EQ(p.events.of("forward"), "10-12; 30-32");
  CHECK_EQ(p.events.unseen, 0);
}

TEST(evaluation_while_a_batch_is_in_hand) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 10, 20);
  p.train(30);
  p.fetch(of, 40, 50);
  p.call(51, 55, false, p.model, true);
  p.train(60);
  p.rule.loader_ended(of, 70, 71);
  p.rule.finish(80, "");
  CHECK_EQ(p.events.of("evaluate"), "51-60,\"epoch\":0");
  CHECK_EQ(p.events.of("forward"), "30-32,\"step\":0,\"epoch\":0; 60-62,\"step\":1,\"epoch\":0");
}

TEST(a_teacher_belongs_to_forward) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  for (int64_t t : {0, 100, 200}) {
    p.fetch(of, t + 10, t + 20);
    p.call(t + 25, t + 28, false, p.teacher, true);
    p.train(t + 30);
  }
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("evaluate"), "");
  CHECK_EQ(p.events.of("forward"),
           "25-32,\"step\":0,\"epoch\":0; 125-132,\"step\":1,\"epoch\":0; 225-232,\"step\":2,\"epoch\":0");
}

TEST(a_model_is_not_taken_for_one_that_was_at_its_address) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 10, 20);
  auto gone = std::make_shared<std::atomic<bool>>(false);
  p.call(21, 22, true, 5);
  CHECK_EQ(p.rule.model_is_new(), true);
  p.rule.follow_model(5, gone);
  p.call(23, 24, true, 5);
  CHECK_EQ(p.rule.model_is_new(), false);
  p.train(30);
  *gone = true;
  p.fetch(of, 40, 50);
  p.call(52, 53, false, 5, true);  // made for this step: it helps
  p.train(60);
  p.rule.loader_ended(of, 70, 71);
  p.rule.finish(80, "");
  CHECK_EQ(p.events.of("evaluate"), "");
  CHECK_EQ(p.events.of("forward"), "21-32,\"step\":0,\"epoch\":0; 52-62,\"step\":1,\"epoch\":0");
}

TEST(without_a_loader_a_few_calls_are_a_teacher_and_many_an_evaluation) {
  Program p;
  p.made(1);
  p.train(100);
  p.call(190, 195, false, p.teacher, true);
  p.train(200);
  for (int64_t t = 300; t < 350; t += 5) p.call(t, t + 1, false, p.teacher, true);
  p.train(400);
  p.rule.finish(500, "");
  CHECK_EQ(p.events.of("forward"), "100-102; 190-202; 400-402");
  CHECK_EQ(p.events.of("evaluate"), "300-400");
}

TEST(rollouts_are_the_programs_own_code) {
  Program p;
  p.made(1);
  for (int64_t t : {1000, 2000}) {
    for (int64_t i = 0; i < 10; ++i) p.call(t + i * 10, t + i * 10 + 1, false, p.model);
    p.train(t + 200);
    p.train(t + 300);
  }
  p.rule.finish(3000, "");
  CHECK_EQ(p.events.of("evaluate"), "");
  CHECK_EQ(p.events.of("forward"), "1200-1202; 1300-1302; 2200-2202; 2300-2302");
}

TEST(a_model_that_acts_with_gradients_on_is_forward_while_it_is_called) {
  Program p;
  p.made(1);
  auto episode = [&](int64_t t, int64_t pause) {
    for (int64_t i = 0; i < 8; ++i) p.call(t + i * (10 + pause), t + i * (10 + pause) + 10, true, p.model);
    int64_t own = p.now.own_since.load();
    t += 8 * (10 + pause);
    p.rule.backward_begins(t);
    p.rule.backward_ends(t + 1);
    p.rule.optimizer_begins(p.optimizer, t + 2);
    p.rule.optimizer_ends(p.optimizer, t + 3, false);
    return own;
  };
  episode(1000, 90);
  // It shows in the first episode, and is known in the next.
  CHECK_EQ(p.events.of("forward"), "1000-1510; 1600-1610; 1700-1710");
  p.events.all.clear();
  CHECK_EQ(episode(2000, 90), 2710);
  CHECK_EQ(p.events.of("forward"),
           "2000-2010; 2100-2110; 2200-2210; 2300-2310; 2400-2410; 2500-2510; 2600-2610; 2700-2710");
  p.events.all.clear();
  episode(3000, 30);  // a sequence, now
  episode(4000, 30);
  CHECK_EQ(p.events.of("forward").substr(p.events.of("forward").rfind(' ') + 1), "4000-4320");
  p.rule.finish(5000, "");
  CHECK_EQ(p.events.of("block"), "1803-2803,\"step\":1; 2803-3323,\"step\":2; 3323-4323,\"step\":3");
  CHECK_EQ(p.events.unseen, 0);
}

TEST(parts_of_a_network_and_gradients_between_calls_are_no_pause) {
  Program parts;
  parts.made(1);
  for (int64_t t : {1000, 2000}) {  // layers, with functions between them that take longer
    for (int64_t i = 0; i < 8; ++i) parts.call(t + 100 * i, t + 100 * i + 10, true, uintptr_t(20 + i));
    parts.rule.backward_begins(t + 800);
    parts.rule.backward_ends(t + 801);
    parts.rule.optimizer_begins(parts.optimizer, t + 802);
    parts.rule.optimizer_ends(parts.optimizer, t + 803, false);
  }
  parts.rule.finish(3000, "");
  CHECK_EQ(parts.events.of("forward"), "1000-1800; 2000-2800");
  Program p;
  p.made(1);
  for (int64_t t : {1000, 2000}) {  // a residual takes longer than the network
    for (int64_t i = 0; i < 8; ++i) {
      p.call(t + 100 * i, t + 100 * i + 10, true, p.model);
      p.rule.took_gradients(t + 100 * i + 20, t + 100 * i + 90, true);
    }
    p.rule.backward_begins(t + 800);
    p.rule.backward_ends(t + 801);
    p.rule.optimizer_begins(p.optimizer, t + 802);
    p.rule.optimizer_ends(p.optimizer, t + 803, false);
  }
  p.rule.finish(3000, "");
  CHECK_EQ(p.events.of("forward"), "1000-1800; 2000-2800");
}

TEST(rollouts_after_an_evaluation_are_no_part_of_it) {
  Program p;
  p.made(1);
  for (int64_t t : {100, 300, 500}) {
    for (int64_t i : {0, 10, 20}) p.call(t + i, t + i + 1, false, p.model);
    p.train(t + 30);
    for (int64_t i : {60, 70, 80}) p.call(t + i, t + i + 1, false, p.model, true);
  }
  p.rule.finish(700, "");
  CHECK_EQ(p.events.of("evaluate"), "160-300; 360-500; 560-581");
  CHECK_EQ(p.events.of("block"), "100-135,\"step\":0; 135-335,\"step\":1; 335-535,\"step\":2");
}

TEST(a_call_that_forward_follows_at_once_makes_its_targets) {
  Program p;
  p.made(1);
  for (int64_t t : {100, 200, 300}) {
    p.call(t, t + 20, false, p.model);
    p.call(t + 21, t + 41, false, p.model);
    p.train(t + 42);
    p.call(t + 60, t + 70, false, p.model);  // a pause follows: experience
  }
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("forward"), "100-144; 200-244; 300-344");
  CHECK_EQ(p.events.of("evaluate"), "");
  Program many;
  many.made(1);
  for (int64_t t : {100, 300}) {
    for (int64_t i = 0; i < 10; ++i) many.call(t + 10 * i, t + 10 * i + 9, false, many.model);
    many.train(t + 100);
  }
  many.rule.finish(500, "");
  CHECK_EQ(many.events.of("forward"), "200-202; 400-402");
}

TEST(a_model_of_an_earlier_training_may_help_in_the_next) {
  Program p;
  p.made(1);
  p.train(100);
  p.train(200);
  p.made(300);
  p.optimizer = 8;
  PassPtr of = loader(1);
  for (int64_t t : {400, 500}) {
    p.fetch(of, t, t + 10);
    p.call(t + 20, t + 30, false, p.model, true);
    p.call(t + 31, t + 32, true, p.teacher);
    p.rule.backward_begins(t + 40);
    p.rule.backward_ends(t + 50);
    p.rule.optimizer_begins(p.optimizer, t + 51);
    p.rule.optimizer_ends(p.optimizer, t + 52, false);
  }
  p.rule.loader_ended(of, 600, 601);
  p.rule.finish(700, "");
  CHECK_EQ(p.events.of("evaluate"), "");
  CHECK_EQ(p.events.of("forward"), "100-102; 200-202; 420-440,\"step\":2,\"epoch\":0; 520-540,\"step\":3,\"epoch\":0");
}

TEST(the_first_step_begins_with_its_rollout) {
  auto first_step = [](std::initializer_list<int64_t> calls) {
    Program p;
    p.made(1);
    for (int64_t t : calls) p.call(t, t + 1, false, p.model);
    p.train(1000);
    p.train(1100);
    p.rule.finish(3000, "");
    std::string steps = p.events.of("block");
    return steps.substr(0, steps.find('-'));
  };
  CHECK_EQ(first_step({900, 920, 950, 980}), "900");
  CHECK_EQ(first_step({900}), "1000");                     // one call may be for anything
  CHECK_EQ(first_step({100, 900, 920, 950, 980}), "900");  // the first one belonged to something else
  CHECK_EQ(first_step({100, 110, 120, 900, 920}), "900");  // so did the first three
  CHECK_EQ(first_step({100, 110, 120}), "1000");           // and the program did something else since
}

TEST(a_loop_without_gradients_and_training_is_inference) {
  Program p;
  PassPtr of = loader(1);
  for (int64_t t : {100, 200, 300}) {
    p.fetch(of, t, t + 10, false);
    p.call(t + 20, t + 60, false, p.model, true);
  }
  p.rule.loader_ended(of, 400, 401);
  p.rule.finish(500, "");
  CHECK_EQ(
      p.events.of("block"),
      "110-200,\"step\":0,\"inference\":1; 210-300,\"step\":1,\"inference\":1; 310-400,\"step\":2,\"inference\":1");
  CHECK_EQ(p.events.of("forward"), "120-160,\"step\":0; 220-260,\"step\":1; 320-360,\"step\":2");
  CHECK_EQ(p.events.of("evaluate") + p.events.of("train"), "");
}

TEST(inference_without_a_loader_has_a_step_for_each_call_of_the_first_model) {
  Program p;
  for (int64_t t : {100, 200, 300}) {
    p.call(t, t + 10, false, p.model, true);
    p.call(t + 20, t + 30, false, p.teacher, true);
  }
  p.rule.finish(500, "");
  CHECK_EQ(
      p.events.of("block"),
      "100-200,\"step\":0,\"inference\":1; 200-300,\"step\":1,\"inference\":1; 300-330,\"step\":2,\"inference\":1");
}

TEST(an_evaluation_before_the_first_step_is_no_inference) {
  Program p;
  p.made(1);
  p.call(10, 20, false, p.model, true);
  p.call(30, 40, false, p.model, true);
  p.train(100);
  p.rule.finish(200, "");
  CHECK_EQ(p.events.of("evaluate"), "10-100");
  CHECK_EQ(p.events.of("block"), "100-105,\"step\":0");
}

TEST(inference_may_leave_gradients_on) {
  Program p;
  PassPtr of = loader(1);
  for (int64_t t = 10; t < 40; t += 10) {
    p.fetch(of, t, t + 2);
    p.call(t + 3, t + 5, true, p.model, true);
  }
  p.rule.loader_ended(of, 40, 41);
  CHECK_EQ(p.events.of("block"),
           "12-20,\"step\":0,\"inference\":1; 22-30,\"step\":1,\"inference\":1; "
           "32-40,\"step\":2,\"inference\":1");
  CHECK_EQ(p.events.of("evaluate"), "");
}

TEST(a_model_in_evaluation_mode_may_train) {
  Program p;
  dft::StepRule::no_optimizer = true;
  for (int64_t t = 10; t < 30; t += 10) {
    p.call(t, t + 1, true, p.model, true);
    p.rule.backward_begins(t + 2);
    p.rule.backward_ends(t + 3);
  }
  p.rule.finish(30, "");
  dft::StepRule::no_optimizer = false;
  CHECK_EQ(p.events.of("block"), "10-20,\"step\":0; 20-23,\"step\":1");
  CHECK_EQ(p.events.unseen, 0);
}

TEST(without_a_loader_and_an_optimizer_a_step_ends_where_the_next_forward_begins) {
  Program p;
  dft::StepRule::no_optimizer = true;
  for (int64_t t = 10; t < 40; t += 10) {
    p.call(t, t + 1, true, p.model);
    p.call(t + 1, t + 2, true, p.model);
    p.rule.backward_begins(t + 3);
    p.rule.backward_ends(t + 4);
  }
  p.rule.finish(40, "");
  dft::StepRule::no_optimizer = false;
  CHECK_EQ(p.events.of("block"), "10-20,\"step\":0; 20-30,\"step\":1; 30-34,\"step\":2");
  CHECK_EQ(p.events.of("forward"), "10-13; 20-23; 30-33");
}

TEST(gradients_of_a_function_are_a_forward_and_a_backward) {
  Program by_hand;  // the program updates its weights itself
  dft::StepRule::no_optimizer = true;
  for (int64_t t : {100, 200, 300}) {
    by_hand.rule.transform_begins(t);
    by_hand.call(t + 1, t + 2, true, by_hand.model, true);
    by_hand.rule.took_gradients(t + 3, t + 4, true);  // a penalty
    by_hand.rule.transform_begins(t + 5);             // and another
    by_hand.rule.took_gradients(t + 6, t + 7, true);
    by_hand.rule.transform_ends(t + 8);
    by_hand.rule.took_gradients(t + 10, t + 20, true);
    by_hand.rule.transform_ends(t + 21);
  }
  by_hand.rule.finish(400, "");
  CHECK_EQ(by_hand.events.of("forward"), "100-110; 200-210; 300-310");
  CHECK_EQ(by_hand.events.of("backward"), "110-120; 210-220; 310-320");
  CHECK_EQ(by_hand.events.of("block"), "100-200,\"step\":0; 200-300,\"step\":1; 300-320,\"step\":2");
  CHECK_EQ(by_hand.events.unseen, 0);
  Program inside;  // a part of the loss of which the program takes gradients by backward
  for (int64_t t : {100, 200, 300}) {
    inside.rule.backward_begins(t);
    inside.rule.backward_ends(t + 10);
    inside.rule.transform_begins(t + 20);
    inside.rule.took_gradients(t + 30, t + 40, true);
    inside.rule.transform_ends(t + 41);
  }
  inside.rule.finish(400, "");
  CHECK_EQ(inside.events.of("backward"), "100-110; 200-210; 300-310");
  dft::StepRule::no_optimizer = false;
  Program p;
  p.made(1);
  for (int64_t t : {100, 200, 300}) {
    p.rule.transform_begins(t);
    p.rule.took_gradients(t + 10, t + 20, true);
    p.rule.transform_ends(t + 21);
    p.rule.optimizer_begins(p.optimizer, t + 30);
    p.rule.optimizer_ends(p.optimizer, t + 40, false);
  }
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("forward"), "100-110; 200-210; 300-310");
  CHECK_EQ(p.events.of("backward"), "110-120; 210-220; 310-320");
  CHECK_EQ(p.events.of("block"), "100-140,\"step\":0; 140-240,\"step\":1; 240-340,\"step\":2");
}

TEST(a_program_that_takes_gradients_and_has_no_optimizer_has_steps) {
  Program p;
  dft::StepRule::no_optimizer = true;
  for (int64_t t : {100, 200, 300}) {
    p.call(t, t + 1, true, p.model);
    p.rule.took_gradients(t + 3, t + 4);
  }
  p.rule.finish(400, "");
  dft::StepRule::no_optimizer = false;
  CHECK_EQ(p.events.of("forward"), "100-103; 200-203; 300-303");
  CHECK_EQ(p.events.of("block"), "100-200,\"step\":0; 200-300,\"step\":1; 300-304,\"step\":2");
}

TEST(calls_without_gradients_after_a_backward_that_ends_its_step_are_evaluation) {
  Program p;
  dft::StepRule::no_optimizer = true;
  for (int64_t t : {100, 200, 300}) {
    p.call(t, t + 1, true, p.model);
    p.rule.backward_begins(t + 2);
    p.rule.backward_ends(t + 3);
    p.call(t + 50, t + 60, false, p.model);
    p.call(t + 61, t + 70, false, p.model);
  }
  p.rule.finish(400, "");
  dft::StepRule::no_optimizer = false;
  CHECK_EQ(p.events.of("evaluate"), "150-200; 250-300; 350-370");
  CHECK_EQ(p.events.of("forward"), "100-102; 200-202; 300-302");
}

TEST(a_closure_that_is_called_again_leaves_the_rest_to_the_optimizer) {
  Program p;
  p.made(1);
  p.rule.optimizer_begins(p.optimizer, 100);
  for (int64_t t : {110, 210}) {
    p.call(t, t + 10, true, p.model);
    p.rule.backward_begins(t + 20);
    p.rule.backward_ends(t + 30);
  }
  p.rule.optimizer_ends(p.optimizer, 300, false);
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("forward"), "110-130; 210-230");
  CHECK_EQ(p.events.of("optimizer"), "140-210; 240-300");
}

TEST(own_code_is_shown_while_it_runs) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 10, 20);
  CHECK_EQ(p.now.own_since.load(), 20);
  p.rule.model_begins(30, true, p.model, false);
  CHECK_EQ(p.now.own_since.load(), 0);
  p.rule.model_ends(35);
  CHECK_EQ(p.now.own_since.load(), 0);  // the loss belongs to forward
  p.rule.backward_begins(40);
  p.rule.backward_ends(50);
  p.rule.optimizer_begins(p.optimizer, 51);
  CHECK_EQ(p.now.own_since.load(), 0);
  p.rule.optimizer_ends(p.optimizer, 60, false);
  CHECK_EQ(p.now.own_since.load(), 60);
  CHECK_EQ(p.now.step.load(), 0);
  p.rule.fetch_begins(70);
  CHECK_EQ(p.now.own_since.load(), 0);
  p.rule.finish(80, "");
  CHECK_EQ(p.now.own_since.load(), 0);
}

TEST(own_code_between_loops_is_shown_too) {
  Program p;
  PassPtr of = loader(1);
  p.fetch(of, 1, 2);
  CHECK_EQ(p.now.own_since.load(), 2);
  p.made(3);
  p.train(10);
  p.rule.fetch_begins(20, of.get());
  CHECK_EQ(p.now.own_since.load(), 0);
  p.rule.loader_ended(of, 20, 21);
  CHECK_EQ(p.events.of("block"), "2-20,\"step\":0,\"epoch\":0");
  CHECK_EQ(p.now.own_since.load(), 21);
  p.rule.finish(30, "");
  CHECK_EQ(p.now.own_since.load(), 0);
}

TEST(accumulation_and_two_optimizers_are_one_step) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  for (int64_t t : {0, 100}) {
    for (int64_t micro : {t + 10, t + 40}) {
      p.fetch(of, micro, micro + 5);
      p.call(micro + 6, micro + 8, true, p.model);
      p.rule.backward_begins(micro + 10);
      p.rule.backward_ends(micro + 12);
    }
    for (uintptr_t key : {7, 8}) {
      p.rule.optimizer_begins(key, t + 60 + int64_t(key));
      p.rule.optimizer_ends(key, t + 61 + int64_t(key), false);
    }
  }
  p.rule.loader_ended(of, 200, 201);
  p.rule.finish(300, "");
  CHECK_EQ(p.events.of("block"), "15-110,\"step\":0,\"epoch\":0; 115-200,\"step\":1,\"epoch\":0");
}

TEST(those_who_act_on_it_know_that_a_step_is_over_where_it_ends) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  for (int64_t n : {0, 1, 2}) {
    p.fetch(of, 100 * n, 100 * n + 10);
    p.train(100 * n + 20);
    CHECK_EQ(p.rule.over(), n);  // the rest of the loop's body is the step's
    p.rule.fetch_begins(100 * n + 90, of.get());
    CHECK_EQ(p.rule.over(), n + 1);  // before the next batch is made
  }
  p.rule.loader_ended(of, 290, 295);
  CHECK_EQ(p.rule.over(), 3);
  p.rule.resume(50, 2);
  p.train(400);
  CHECK_EQ(p.rule.over(), 4);  // no loader: after its only optimizer
  CHECK_EQ(p.rule.over_number(), 50);
}

TEST(what_is_done_between_steps_is_no_part_of_one) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 0, 10);
  p.train(20);
  p.rule.fetch_begins(90, of.get());
  p.rule.resumes(150);
  p.rule.fetching(false);
  p.rule.fetched(of, 150, 160, true, "");
  p.train(170);
  p.rule.fetch_begins(180, of.get());
  p.rule.loader_ended(of, 180, 185);
  p.train(200);
  p.rule.resumes(300);
  p.train(310);
  p.rule.finish(400, "");
  CHECK_EQ(p.events.of("block"),
           "10-90,\"step\":0,\"epoch\":0; 160-180,\"step\":1,\"epoch\":0; 185-205,\"step\":2,\"epoch\":0; "
           "300-315,\"step\":3,\"epoch\":0");
}

TEST(without_a_loader_a_step_ends_with_as_many_optimizers_as_the_one_before) {
  Program p;
  p.made(1);
  p.made(2);
  auto generator_and_critic = [&](int64_t t) {
    for (uintptr_t key : {7, 8}) {
      p.optimizer = key;
      p.train(t);
      t += 10;
    }
  };
  generator_and_critic(10);
  CHECK_EQ(p.rule.over(), 0);  // is there a third one?
  p.optimizer = 7;
  p.train(40);
  CHECK_EQ(p.rule.over(), 1);
  p.optimizer = 8;
  p.train(50);
  CHECK_EQ(p.rule.over(), 2);
  generator_and_critic(70);
  CHECK_EQ(p.rule.over(), 3);
  p.rule.finish(100, "");
  CHECK_EQ(p.rule.over(), 3);
  CHECK_EQ(p.events.of("block"), "10-25,\"step\":0; 25-55,\"step\":1; 55-85,\"step\":2");
}

TEST(a_failure_is_marked) {
  Program p;
  p.made(1);
  PassPtr of = loader(1);
  p.fetch(of, 10, 20);
  p.rule.model_begins(30, true, p.model, false);
  p.rule.model_ends(40);
  p.rule.finish(50, "ValueError");
  CHECK_EQ(p.events.of("forward"), "30-50,\"error\":\"ValueError\",\"step\":0,\"epoch\":0");
  CHECK_EQ(p.events.of("block"), "");
}

TEST_MAIN
