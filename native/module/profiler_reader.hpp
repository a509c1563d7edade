// Reads a profiler's activities, Python objects of C++ ones, by their getters: one row after the other, since most of
// the cost of a getter is fetching the object into the cache.
#pragma once

#include <string>
#include <vector>

#include "module/cpython_util.hpp"
#include "module/profiler_table.hpp"

namespace dft::py {

class Reader {
 public:
  // The getters by name; those that this torch does not have are missing. Borrows `getters` and `activities`, which it
  // empties. Raises and returns false where a needed one is missing.
  bool open(PyObject* getters, PyObject* activities, Table* table);
  ~Reader();

  // Times and category of row `i`, and all of it where other rows depend on it.
  bool begin(size_t i);
  bool done(size_t i) const { return PyList_GET_ITEM(activities_, Py_ssize_t(i)) == Py_None; }
  // The rest of it; the activity is let go.
  bool complete(size_t i);
  // Hands the texts read so far to the table. Needs no interpreter lock.
  void digest();

 private:
  enum Slot {
    kName,
    kStart,
    kDuration,
    kTid,
    kCorrelation,
    kLinked,
    kDevice,
    kNeeded,  // the ones above
    kType = kNeeded,
    kGuess,
    kAnnotation,
    kMetadata,
    kShapes,
    kDtypes,
    kSequence,
    kForwardThread,
    kStack,
    kPythonId,
    kPythonParent,
    kPythonModule,
    kBytes,
    kDeviceType,
    kFlops,
    kSlots,
  };
  static const char* const kNames[kSlots];

  struct Text {
    size_t row, start, size;
  };

  PyObject* call(Slot slot, PyObject* activity);
  bool number(Slot slot, PyObject* activity, int64_t* out);
  bool optional_number(Slot slot, PyObject* activity, int64_t* out);
  // Appends to `out`; a text that is not UTF-8 leaves `otherwise` there.
  bool text(Slot slot, PyObject* activity, std::string* out, const char* fallback);
  bool read_kind(Row& row, PyObject* activity);
  bool guess_kind(Row& row, PyObject* activity);
  bool read_name(Row& row, PyObject* activity);
  bool read_event(Row& row, PyObject* activity);
  bool write_inputs(PyObject* activity);
  bool release_args();

  PyObject* slots_[kSlots] = {};
  PyCFunctionWithKeywords direct_[kSlots] = {};  // behind the slots that are plain C functions
  PyObject* activities_ = nullptr;
  PyObject* args_ = nullptr;
  Table* table_ = nullptr;
  std::vector<int32_t> guessed_;  // by name: the category, or that it has to be asked for
  std::vector<Text> pending_;
  std::string texts_, scratch_;
};

}  // namespace dft::py
