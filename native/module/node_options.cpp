#include "module/node_options.hpp"

#include "module/node.hpp"

namespace dft::py {
namespace {

struct Option {
  enum Kind { kValue, kArgs, kEnable } kind;
  const char* name;
  const char* key;
  PyObject* interned;
};
Option g_options[] = {
    {Option::kArgs, "args", nullptr, nullptr},
    {Option::kValue, "epoch", "\"epoch\":", nullptr},
    {Option::kValue, "step", "\"step\":", nullptr},
    {Option::kEnable, "enable", nullptr, nullptr},
    {Option::kValue, "image_idx", "\"image_idx\":", nullptr},
    {Option::kValue, "image_size", "\"image_size\":", nullptr},
};

const Option* find_option(PyObject* key) {
  for (const Option& o : g_options)
    if (o.interned == key) return &o;
  for (const Option& o : g_options)
    if (PyUnicode_CompareWithASCIIString(key, o.name) == 0) return &o;
  return nullptr;
}

// What the keywords of one call say; `args` is applied last, over all the others.
class Options {
 public:
  Options(Args* args, int* enable) : out_(args), enable_(enable) {}

  bool take(PyObject* key, PyObject* value) {
    const Option* option = find_option(key);
    if (!option || (option->kind == Option::kEnable && !enable_)) {
      PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R", key);
      return false;
    }
    if (value == Py_None || !g_tracing) return true;
    if (option->kind == Option::kArgs) {
      args_ = value;
    } else if (option->kind == Option::kEnable) {
      *enable_ = PyObject_IsTrue(value) > 0;
      forgive();
    } else {
      formatting([&] { out_->set(option->key, value); });
    }
    return true;
  }

  bool finish() {
    if (args_) formatting([&] { out_->set_all(args_); });
    return !raise_kept();
  }

 private:
  Args* out_;
  int* enable_;
  PyObject* args_ = nullptr;
};

}  // namespace

bool parse_options(const Keywords& given, Args* args, int* enable) {
  // Nearly always it is one dictionary.
  const Option& first = g_options[0];
  if (DFT_LIKELY(given.names && PyTuple_GET_SIZE(given.names) == 1 &&
                 PyTuple_GET_ITEM(given.names, 0) == first.interned && g_tracing)) {
    formatting([&] { args->set_all(given.values[0]); });
    return !raise_kept();
  }
  Options options(args, enable);
  if (given.dict) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(given.dict, &at, &key, &value))
      if (!options.take(key, value)) return false;
  } else if (given.names) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.names); ++i)
      if (!options.take(PyTuple_GET_ITEM(given.names, i), given.values[i])) return false;
  }
  return options.finish();
}

bool parse_update(PyObject* args, PyObject* kwargs, Args* out) {
  static const char* names[] = {"epoch", "step", "image_idx", "image_size", "args"};
  Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (given > 5) {
    PyErr_SetString(PyExc_TypeError, "update() takes epoch, step, image_idx, image_size and args");
    return false;
  }
  if (!given) return parse_options({kwargs}, out, nullptr);
  Ref all(kwargs ? PyDict_Copy(kwargs) : PyDict_New());
  if (!all) return false;
  for (Py_ssize_t i = 0; i < given; ++i)
    if (PyDict_SetItemString(all.get(), names[i], PyTuple_GET_ITEM(args, i)) < 0) return false;
  return parse_options({all.get()}, out, nullptr);
}

void init_options() {
  for (Option& o : g_options) o.interned = PyUnicode_InternFromString(o.name);
}

}  // namespace dft::py
