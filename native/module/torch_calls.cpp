#include "module/torch_calls.hpp"

#include <structmember.h>

#include <cstddef>
#include <string>
#include <utility>

#include "module/auto_event.hpp"
#include "module/training.hpp"
#include "session/session.hpp"

namespace dft::py {
namespace {

// A function of torch with what is recorded around it. Compilers cannot look into it: see Observed in patches.py.
struct ObservedCall {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* original;
  PyObject* with;  // what else the call needs
};

PyTypeObject g_call_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.ObservedCall", sizeof(ObservedCall)};

ObservedCall* call_of(PyObject* self) { return reinterpret_cast<ObservedCall*>(self); }

PyObject* make_call(vectorcallfunc call, PyObject* original, PyObject* with) {
  auto* made = PyObject_New(ObservedCall, &g_call_type);
  if (!made) return nullptr;
  made->call = call;
  made->original = new_ref(original);
  made->with = Py_XNewRef(with);
  return reinterpret_cast<PyObject*>(made);
}

void call_dealloc(PyObject* self) {
  Py_XDECREF(call_of(self)->original);
  Py_XDECREF(call_of(self)->with);
  PyObject_Free(self);
}

// The training of this thread, unless torch exports or compiles what runs.
class Here {
 public:
  Here() : t_(torch_compiles() ? nullptr : training_here()) {}
  ~Here() { Py_XDECREF(t_); }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;
  explicit operator bool() const { return t_ != nullptr; }
  operator Training*() const { return t_; }  // NOLINT(google-explicit-constructor): passes for the pointer
  Training* operator->() const { return t_; }

 private:
  Training* t_;
};

PyObject* backward(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* original = call_of(self)->original;
  Here here;
  if (!here) return PyObject_Vectorcall(original, args, nargsf, names);
  if (!backward_begins(here)) return nullptr;
  PyObject* result = PyObject_Vectorcall(original, args, nargsf, names);
  if (DFT_UNLIKELY(!result)) {
    KeepError keep;
    backward_ends(here, keep.name());
    return nullptr;
  }
  if (!backward_ends(here, {})) Py_CLEAR(result);
  return result;
}

// What takes gradients of a function, and calls it.
PyObject* transform(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* original = call_of(self)->original;
  Here here;
  if (!here) return PyObject_Vectorcall(original, args, nargsf, names);
  if (!transform_begins(here)) return nullptr;
  PyObject* result = PyObject_Vectorcall(original, args, nargsf, names);
  if (DFT_UNLIKELY(!result)) {
    KeepError keep;
    transform_ends(here);
    return nullptr;
  }
  if (!transform_ends(here)) Py_CLEAR(result);
  return result;
}

PyObject* around_transform(PyObject*, PyObject* original) { return make_call(transform, original, nullptr); }

PyObject* around_backward(PyObject*, PyObject* original) { return make_call(backward, original, nullptr); }

// `__next__` of a loader's iterator.
PyObject* next(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* original = call_of(self)->original;
  Here here;
  // A data set may load through a loader of its own.
  if (!here || PyVectorcall_NARGS(nargsf) < 1 || here->rule->fetching())
    return PyObject_Vectorcall(original, args, nargsf, names);
  PyObject* iterator = args[0];
  int64_t start;
  if (!fetch_begins(here, iterator, &start)) return nullptr;
  PyObject* batch = PyObject_Vectorcall(original, args, nargsf, names);
  if (DFT_LIKELY(batch && is_latest_pass(here, iterator))) {
    if (!fetched(here, here->latest, start)) Py_CLEAR(batch);
    return batch;
  }
  KeepError keep;
  Ref pass(PyObject_CallOneArg(call_of(self)->with, iterator));
  if (!pass) PyErr_Clear();
  if (!pass || !is_pass(pass.get())) return batch;
  if (batch)
    fetched(here, pass.get(), start);
  else if (keep.matches(PyExc_StopIteration))
    loader_ended(here, pass.get(), start);
  else
    fetch_failed(here, pass.get(), start, keep.name());
  return batch;
}

// around_next(original, pass_of): `pass_of(iterator)` returns its LoaderPass.
PyObject* around_next(PyObject*, PyObject* args) {
  PyObject *original, *pass_of;
  if (!PyArg_ParseTuple(args, "OO", &original, &pass_of)) return nullptr;
  return make_call(next, original, pass_of);
}

// Hooks of torch.optim; what they return would be the new arguments.
PyObject* optimizer_step_begins(PyObject*, PyObject* optimizer) {
  Here here;
  if (here && !optimizer_begins(here, optimizer)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* optimizer_step_ends(PyObject*, PyObject* optimizer) {
  Here here;
  if (here && !optimizer_ends(here, optimizer, false)) return nullptr;
  Py_RETURN_NONE;
}

// A copy between devices ----------------------------------------------------------------------------------------------

PyObject *g_device_name = nullptr, *g_type_name = nullptr, *g_numel_name = nullptr, *g_element_size_name = nullptr;
PyObject *g_enter_name = nullptr, *g_exit_name = nullptr;

// Modes of `__torch_function__` would be called whenever a tensor is inspected: not while this exists.
class Unseen {
 public:
  Unseen(PyObject* modes, PyObject* without) {
    Ref count(PyObject_CallNoArgs(modes));
    if (!count) return;
    if (PyObject_IsTrue(count.get()) == 1) {
      without_ = Ref(PyObject_CallNoArgs(without));
      Ref entered(without_ ? PyObject_CallMethodNoArgs(without_.get(), g_enter_name) : nullptr);
      if (!entered) return;
    }
    fine_ = true;
  }
  ~Unseen() {
    if (!fine_ || !without_) return;
    KeepError keep;
    Ref left(PyObject_CallMethodObjArgs(without_.get(), g_exit_name, Py_None, Py_None, Py_None, nullptr));
    if (!left) PyErr_Clear();
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
  explicit operator bool() const { return fine_; }

 private:
  Ref without_;
  bool fine_ = false;
};

// The number that a method without arguments returns; -1 with an exception.
int64_t number_of(PyObject* tensor, PyObject* method) {
  Ref answer(PyObject_CallMethodNoArgs(tensor, method));
  return answer ? PyLong_AsLongLong(answer.get()) : -1;
}

// `event` from `start` on, if the tensors are on different devices. False with an exception.
bool write_copy(AutoEvent* event, PyObject* source, PyObject* result, int64_t start, int64_t end) {
  Ref from(PyObject_GetAttr(source, g_device_name)), to(from ? PyObject_GetAttr(result, g_device_name) : nullptr);
  int same = to ? PyObject_RichCompareBool(from.get(), to.get(), Py_EQ) : -1;
  if (same) return same > 0;
  Ref source_type(PyObject_GetAttr(from.get(), g_type_name)), result_type(PyObject_GetAttr(to.get(), g_type_name));
  if (!source_type || !result_type) return false;
  int64_t items = number_of(source, g_numel_name);
  int64_t size = PyErr_Occurred() ? -1 : number_of(source, g_element_size_name);
  if (PyErr_Occurred()) return false;
  Training* here = training_here();
  if (!here) return true;
  if (!here->muted) {
    Section section(reinterpret_cast<PyObject*>(here));
    here->rule->saw(end);
    if (!annotated_by_hand(event)) {
      recording([&] {
        std::string args = ",\"bytes\":";
        append_int(args, items * size);
        args.append(",\"kind\":\"").append(view_of(source_type.get())).append(" to ");
        args.append(view_of(result_type.get())).append("\"").append(here->rule->numbers()).append(",\"auto\":1");
        emit(event, uint64_t(start), uint64_t(end), args);
      });
    }
  }
  Py_DECREF(here);
  if (g_subscribers[size_t(Boundary::kTransfer)]) {
    Ref bytes(PyLong_FromLongLong(items * size));
    if (!bytes) return false;
    notify(Boundary::kTransfer, false, bytes.get());
  }
  return true;
}

// Called after a call that may have copied a tensor: (source, result, start).
PyObject* copied(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  int64_t end = rule_clock();
  PyObject* with = call_of(self)->with;
  int64_t start = PyVectorcall_NARGS(nargsf) == 3 ? PyLong_AsLongLong(args[2]) : -1;
  bool fine = false;
  if (start >= 0) {
    Unseen unseen(PyTuple_GET_ITEM(with, 0), PyTuple_GET_ITEM(with, 1));
    fine = unseen && write_copy(reinterpret_cast<AutoEvent*>(call_of(self)->original), args[0], args[1], start, end);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError, "takes the source, the result and the start");
  }
  if (fine) Py_RETURN_NONE;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Ref owned_type(type), owned_value(value), owned_trace(trace);
  return value ? PyObject_CallOneArg(PyTuple_GET_ITEM(with, 2), value) : nullptr;
}

// after_copy(event, modes, without, failed): `modes()` is the number of modes of `__torch_function__`,
// `without()` is a context in which they are not called, `failed` is called with an exception.
PyObject* after_copy(PyObject*, PyObject* args) {
  PyObject *event, *modes, *without, *failed;
  if (!PyArg_ParseTuple(args, "O!OOO", &g_auto_event_type, &event, &modes, &without, &failed)) return nullptr;
  Ref with(PyTuple_Pack(3, modes, without, failed));
  return with ? make_call(copied, event, with.get()) : nullptr;
}

// Making a batch ------------------------------------------------------------------------------------------------------

Relaxed<AutoEvent*> g_item = nullptr, g_collate = nullptr;
PyObject* g_batch = nullptr;      // the number of the task of this worker; None elsewhere
Relaxed<int64_t> g_restarts = 0;  // how often its loader had begun again
PyObject *g_dataset_name = nullptr, *g_auto_collation_name = nullptr, *g_collate_name = nullptr, *g_many_name = nullptr;

void add_task(Pairs& pairs) {
  Ref batch = shared(g_batch);
  if (!batch || batch.get() == Py_None) return;
  pairs.add("batch", batch.get());
  if (int64_t restarts = g_restarts) pairs.add("pass", restarts);
}

// An event from `start` on, with the task it belongs to. False with an exception that was raised from outside
// meanwhile.
template <typename Add>
bool write(AutoEvent* event, uint64_t start, uint64_t end, Add add) {
  if (annotated_by_hand(event)) return true;
  recording([&] {
    Pairs pairs;
    add(pairs);
    add_task(pairs);
    emit(event, start, end, pairs.text());
  });
  if (DFT_UNLIKELY(PyErr_Occurred() != nullptr)) PyErr_Clear();
  return !raise_kept();
}

bool write_item(uint64_t start, uint64_t end, PyObject* index) {
  return write(g_item, start, end, [&](Pairs& pairs) {
    if (PyLong_CheckExact(index)) pairs.add("image_idx", index);
  });
}

// Stands in for the data set while torch's fetcher makes one batch of it item by item. `__getitems__`, for which torch
// asks three times a batch, is the object itself: calling it makes all items, as torch does without it.
struct Items {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* dataset;
};

PyTypeObject g_items_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.Items", sizeof(Items)};

PyObject* dataset_of(PyObject* self) { return reinterpret_cast<Items*>(self)->dataset; }

PyObject* all_items(PyObject* self, PyObject* const* args, size_t nargsf, PyObject*) {
  if (PyVectorcall_NARGS(nargsf) != 1) {
    PyErr_SetString(PyExc_TypeError, "__getitems__() takes the indices");
    return nullptr;
  }
  Ref indices(PyObject_GetIter(args[0]));
  Ref found(PyList_New(0));
  if (!indices || !found) return nullptr;
  uint64_t start = now_epoch_ns();
  while (Ref index{PyIter_Next(indices.get())}) {
    Ref item(PyObject_GetItem(dataset_of(self), index.get()));
    if (!item || PyList_Append(found.get(), item.get()) < 0) return nullptr;
    uint64_t end = now_epoch_ns();
    if (!write_item(start, end, index.get())) return nullptr;
    start = end;
  }
  return PyErr_Occurred() ? nullptr : found.release();
}

PyObject* one_item(PyObject* self, PyObject* index) {
  uint64_t start = now_epoch_ns();
  Ref item(PyObject_GetItem(dataset_of(self), index));
  if (!item || !write_item(start, now_epoch_ns(), index)) return nullptr;
  return item.release();
}

PyObject* make_items(PyObject* dataset) {
  auto* made = PyObject_New(Items, &g_items_type);
  if (!made) return nullptr;
  made->call = all_items;
  made->dataset = new_ref(dataset);
  return reinterpret_cast<PyObject*>(made);
}

void items_dealloc(PyObject* self) {
  Py_XDECREF(dataset_of(self));
  PyObject_Free(self);
}

PyObject* itself(PyObject* self, void*) { return new_ref(self); }

PyGetSetDef g_items_properties[] = {{"__getitems__", itself, nullptr, nullptr, nullptr}, {}};
PyMemberDef g_items_members[] = {{"dataset", T_OBJECT, offsetof(Items, dataset), READONLY, nullptr}, {}};
PyMappingMethods g_items_mapping = {nullptr, one_item, nullptr};

// Stands in for torch's `_MapDatasetFetcher` inside one call of its `fetch`.
struct MapFetcher {
  PyObject_HEAD
  PyObject *auto_collation, *dataset, *collate;
};

PyTypeObject g_fetcher_type = {PyVarObject_HEAD_INIT(nullptr, 0) "dftracer._core.MapFetcher", sizeof(MapFetcher)};

MapFetcher* fetcher_of(PyObject* self) { return reinterpret_cast<MapFetcher*>(self); }

PyObject* collate_fn(PyObject* self, PyObject* items) {
  uint64_t start = now_epoch_ns();
  Ref batch(PyObject_CallOneArg(fetcher_of(self)->collate, items));
  if (!batch) return nullptr;
  bool fine = write(g_collate, start, now_epoch_ns(), [&](Pairs& pairs) {
    if (PyList_CheckExact(items)) pairs.add("items", int64_t(PyList_GET_SIZE(items)));
  });
  return fine ? batch.release() : nullptr;
}

void fetcher_dealloc(PyObject* self) {
  MapFetcher* f = fetcher_of(self);
  Py_XDECREF(f->auto_collation);
  Py_XDECREF(f->dataset);
  Py_XDECREF(f->collate);
  PyObject_Free(self);
}

PyMethodDef g_fetcher_methods[] = {{"collate_fn", collate_fn, METH_O, nullptr}, {}};
PyMemberDef g_fetcher_members[] = {
    {"auto_collation", T_OBJECT, offsetof(MapFetcher, auto_collation), READONLY, nullptr},
    {"dataset", T_OBJECT, offsetof(MapFetcher, dataset), READONLY, nullptr},
    {},
};

// The attribute, if there is one, as `getattr` with a default finds it. False with an exception.
bool find_attribute(PyObject* object, PyObject* name, Ref* out) {
  PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  int result = PyObject_GetOptionalAttr(object, name, &found);
#else
  int result = _PyObject_LookupAttr(object, name, &found);
#endif
  *out = Ref(found);
  return result >= 0;
}

// `with`: the fetcher's type, and what makes a stand-in for a data set that makes the items of a batch together.
PyObject* make_fetcher(PyObject* fetcher, PyObject* with) {
  Ref made(reinterpret_cast<PyObject*>(PyObject_New(MapFetcher, &g_fetcher_type)));
  if (!made) return nullptr;
  MapFetcher* f = fetcher_of(made.get());
  f->dataset = f->collate = nullptr;
  f->auto_collation = PyObject_GetAttr(fetcher, g_auto_collation_name);
  Ref dataset(f->auto_collation ? PyObject_GetAttr(fetcher, g_dataset_name) : nullptr);
  int together = dataset ? PyObject_IsTrue(f->auto_collation) : -1;
  Ref many;
  if (together < 0 || (together && !find_attribute(dataset.get(), g_many_name, &many))) return nullptr;
  f->dataset = many ? PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(with, 1), dataset.get(), many.get(), nullptr)
                    : make_items(dataset.get());
  f->collate = f->dataset ? PyObject_GetAttr(fetcher, g_collate_name) : nullptr;
  return f->collate ? made.release() : nullptr;
}

PyObject* fetch(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject *original = call_of(self)->original, *with = call_of(self)->with;
  Py_ssize_t n = PyVectorcall_NARGS(nargsf);
  // A subclass may rely on `self` being its own instance.
  bool known = n == 2 && !names && reinterpret_cast<PyObject*>(Py_TYPE(args[0])) == PyTuple_GET_ITEM(with, 0);
  if (!known) return PyObject_Vectorcall(original, args, nargsf, names);
  Ref fetcher(make_fetcher(args[0], with));
  if (!fetcher) return nullptr;
  PyObject* ours[] = {nullptr, fetcher.get(), args[1]};
  return PyObject_Vectorcall(original, ours + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// around_fetch(original, owner, together, item, collate): the last two are the kinds of events it writes.
PyObject* around_fetch(PyObject*, PyObject* args) {
  PyObject *original, *owner, *together, *item, *collate;
  if (!PyArg_ParseTuple(args, "OO!OO!O!", &original, &PyType_Type, &owner, &together, &g_auto_event_type, &item,
                        &g_auto_event_type, &collate))
    return nullptr;
  Ref with(PyTuple_Pack(2, owner, together));
  if (!with) return nullptr;
  Py_INCREF(item);  // once per process
  Py_INCREF(collate);
  g_item = reinterpret_cast<AutoEvent*>(item);
  g_collate = reinterpret_cast<AutoEvent*>(collate);
  return make_call(fetch, original, with.get());
}

// set_task(batch, restarts): the batch that this worker is to make.
PyObject* set_task(PyObject*, PyObject* args) {
  PyObject* batch;
  long long restarts;
  if (!PyArg_ParseTuple(args, "OL", &batch, &restarts)) return nullptr;
  Section section(module_state());
  Py_XSETREF(g_batch, new_ref(batch));
  g_restarts = restarts;
  Py_RETURN_NONE;
}

PyMethodDef g_torch_functions[] = {
    {"around_backward", around_backward, METH_O, nullptr},
    {"around_transform", around_transform, METH_O, nullptr},
    {"around_next", around_next, METH_VARARGS, nullptr},
    {"around_fetch", around_fetch, METH_VARARGS, nullptr},
    {"after_copy", after_copy, METH_VARARGS, nullptr},
    {"optimizer_step_begins", optimizer_step_begins, METH_O, nullptr},
    {"optimizer_step_ends", optimizer_step_ends, METH_O, nullptr},
    {"set_task", set_task, METH_VARARGS, nullptr},
    {},
};

bool make_names() {
  const std::pair<PyObject**, const char*> names[] = {
      {&g_dataset_name, "dataset"},    {&g_auto_collation_name, "auto_collation"},
      {&g_collate_name, "collate_fn"}, {&g_many_name, "__getitems__"},
      {&g_device_name, "device"},      {&g_type_name, "type"},
      {&g_numel_name, "numel"},        {&g_element_size_name, "element_size"},
      {&g_enter_name, "__enter__"},    {&g_exit_name, "__exit__"},
  };
  for (auto [name, text] : names)
    if (!(*name = PyUnicode_InternFromString(text))) return false;
  return true;
}

}  // namespace

bool init_torch_calls(PyObject* module) {
  PyTypeObject& c = g_call_type;
  c.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  c.tp_vectorcall_offset = offsetof(ObservedCall, call);
  c.tp_call = PyVectorcall_Call;
  c.tp_dealloc = call_dealloc;
  PyTypeObject& i = g_items_type;
  i.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  i.tp_vectorcall_offset = offsetof(Items, call);
  i.tp_call = PyVectorcall_Call;
  i.tp_as_mapping = &g_items_mapping;
  i.tp_getset = g_items_properties;
  i.tp_members = g_items_members;
  i.tp_dealloc = items_dealloc;
  PyTypeObject& f = g_fetcher_type;
  f.tp_flags = Py_TPFLAGS_DEFAULT;
  f.tp_methods = g_fetcher_methods;
  f.tp_members = g_fetcher_members;
  f.tp_dealloc = fetcher_dealloc;
  return make_names() && PyType_Ready(&c) == 0 && PyType_Ready(&i) == 0 && PyType_Ready(&f) == 0 &&
         add_type(module, "ObservedCall", &c) && PyModule_AddFunctions(module, g_torch_functions) == 0;
}

}  // namespace dft::py
