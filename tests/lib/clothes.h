#pragma once
/* A small made-up data set in the files of Fashion-MNIST: 640 images to train on, 100 to test. */

/* Writes the four files into `dir`, which exists. Ends the case when it cannot. */
void er_test_clothes(const char *dir);
