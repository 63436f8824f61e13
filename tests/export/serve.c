/* Serves one fill_mask request without Python, through the loader that TensorFlow Serving uses.
 *
 *   serve MODEL LIBRARIES INPUT TOKENS PROBABILITIES TEXT...
 *
 * LIBRARIES: tensorflow-text's shared objects, separated by commas. INPUT, TOKENS, PROBABILITIES:
 * graph outputs as operation:index, as the signature names them. Prints one line a prediction:
 * row, mask, rank, probability, token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static void check(TF_Status *status, const char *what) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

static TF_Output output(TF_Graph *graph, const char *name) {
  char operation[256];
  const char *colon = strrchr(name, ':');
  if (colon == NULL || colon - name >= (long)sizeof operation) {
    fprintf(stderr, "not operation:index: %s\n", name);
    exit(1);
  }
  snprintf(operation, sizeof operation, "%.*s", (int)(colon - name), name);
  TF_Output found = {TF_GraphOperationByName(graph, operation), atoi(colon + 1)};
  if (found.oper == NULL) {
    fprintf(stderr, "no operation %s\n", operation);
    exit(1);
  }
  return found;
}

static TF_Tensor *strings(char **texts, int64_t count) {
  TF_Tensor *tensor = TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof(TF_TString));
  TF_TString *cells = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; i++) {
    TF_StringInit(&cells[i]);
    TF_StringCopy(&cells[i], texts[i], strlen(texts[i]));
  }
  return tensor;
}

int main(int argc, char **argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: serve MODEL LIBRARIES INPUT TOKENS PROBABILITIES TEXT...\n");
    return 2;
  }
  TF_Status *status = TF_NewStatus();
  for (char *path = strtok(argv[2], ","); path != NULL; path = strtok(NULL, ",")) {
    TF_LoadLibrary(path, status);
    check(status, path);
  }
  const char *tag = "serve";
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Session *session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], &tag, 1, graph, NULL, status);
  check(status, argv[1]);

  TF_Output input = output(graph, argv[3]);
  TF_Output wanted[2] = {output(graph, argv[4]), output(graph, argv[5])};
  TF_Tensor *texts = strings(argv + 6, argc - 6);
  TF_Tensor *answer[2];
  TF_SessionRun(session, NULL, &input, &texts, 1, wanted, answer, 2, NULL, 0, NULL, status);
  check(status, "run");

  const TF_TString *tokens = TF_TensorData(answer[0]); /* (rows, masks, ranks) */
  const float *probabilities = TF_TensorData(answer[1]);
  int64_t masks = TF_Dim(answer[0], 1), ranks = TF_Dim(answer[0], 2);
  for (int64_t i = 0; i < TF_TensorElementCount(answer[0]); i++) {
    printf("%d %d %d %.9g %.*s\n", (int)(i / ranks / masks), (int)(i / ranks % masks),
           (int)(i % ranks), probabilities[i], (int)TF_StringGetSize(&tokens[i]),
           TF_StringGetDataPointer(&tokens[i]));
  }

  TF_DeleteTensor(answer[0]);
  TF_DeleteTensor(answer[1]);
  TF_DeleteTensor(texts);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
